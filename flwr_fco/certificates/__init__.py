"""Certificates of a model: duality gaps and residuals, from what clients answer."""

from flwr_fco.certificates.certificate import Certificate, Request, certificate, settle

__all__ = ["Certificate", "Request", "certificate", "settle"]
