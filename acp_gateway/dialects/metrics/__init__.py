"""Metrics for Prometheus at `/metrics`: `exporter` renders them."""
