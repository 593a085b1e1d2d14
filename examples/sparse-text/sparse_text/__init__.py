"""Which of a million words tell two classes of documents apart, federated."""
