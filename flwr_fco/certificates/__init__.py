"""Certificates of a model: duality gaps and residuals, computed from the clients' answers."""

from flwr_fco.certificates.certificate import Certificate, Request, certificate, settle

__all__ = ["Certificate", "Request", "certificate", "settle"]
