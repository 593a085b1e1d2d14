"""A lasso of five hospitals, with confounders that are not penalised and a cross-validated strength."""
