"""Requests as callers state them: a prompt, a tenant, a length."""
