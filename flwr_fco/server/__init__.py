"""The server half: Flower's strategy, the contract of algorithms, and the parts that strategies hold."""
