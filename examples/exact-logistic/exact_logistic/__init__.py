"""Ten hospitals get the pooled logistic regression, to 1e-8, without pooling their patients."""
