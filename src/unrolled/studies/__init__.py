"""The field's claims, measured."""
