"""What Prometheus reads: counts and times, bounded in number.

Rules: label values come from fixed sets or from the operator, never from a client; an exchange is counted once, from
its record; a ratio is the reader's to make, over the window the reader wants; what can start at 0 does.
"""

from gateway.metrics.page import Metrics, MetricsOptions

__all__ = ["Metrics", "MetricsOptions"]
