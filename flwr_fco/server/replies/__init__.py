"""The replies of a round, and the checks that decide which of them count."""
