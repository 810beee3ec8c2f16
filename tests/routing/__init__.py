"""Tests of where requests go."""
