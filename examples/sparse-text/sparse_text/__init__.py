"""Which of a million words separate two classes of documents, federated."""
