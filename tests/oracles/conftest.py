"""What the studies are made from needs packages of the extra [oracles]: without them it cannot be imported."""

collect_ignore = ["studies.py"]
