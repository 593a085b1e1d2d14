"""The papers' claims: definitions, rules, reproduction."""
