"""Networks that attacks train on releases of public images."""
