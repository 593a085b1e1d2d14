"""Certificates of a model: duality gaps and residuals, computed from the clients' answers."""

from flwr_fco.certificates.certificate import Certificate, Request, certificate, settle
from flwr_fco.certificates.gap import reported_at
from flwr_fco.messages.protocol import Answer

__all__ = ["Answer", "Certificate", "Request", "certificate", "reported_at", "settle"]
