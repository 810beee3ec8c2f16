"""Tests of requests that another server answers."""
