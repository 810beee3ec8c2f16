"""Made-up upstreams for the page's fleet view."""

from __future__ import annotations

from typing import Any

from tests.dashboard.made_up import NOW, Json, MadeUp


def upstream(name: str, state: str = "well", **more: Any) -> Json:
    """Shape one upstream as it is now."""
    plain: Json = {"name": name, "kind": "vllm", "base_url": f"http://{name}.invalid/v1", "models": ["large"]}
    plain |= {"apis": ["chat"], "weight": 1.0, "state": state, "why": "", "open": 3, "load_tokens": 4200.0}
    plain |= {"requests": 1200, "failures": 0, "resident_tokens": 830_000, "available_tokens": 500_000}
    plain |= {"captured_tokens": 450_000, "delivered_tokens": 400_000, "prompt_tokens": 800_000}
    return plain | {"delivered_ratio": 0.5} | more


def told(requests: int, available: int | None, captured: int | None, delivered: int | None, silent: int = 0) -> Json:
    """Shape what routing promised and what came of it."""
    prompt = None if available is None else 2 * available
    tokens = {"prompt_tokens": prompt, "available": available, "captured": captured, "delivered": delivered}
    return {"requests": requests, **tokens, "unreported_requests": silent}


def replica(name: str, requests: int, *tokens: int | None, silent: int = 0) -> Json:
    """Shape one upstream's share of it."""
    available, captured, delivered = tokens
    lost: Json = {"lost_in_routing": None, "lost_at_replica": None}
    if available is not None and captured is not None and delivered is not None:
        lost = {"lost_in_routing": available - captured, "lost_at_replica": captured - delivered}
    return {"name": name, **told(requests, available, captured, delivered, silent), **lost}


def fleet(*replicas: Json, why: dict[str, int] | None = None) -> Json:
    """Shape an answer of /admin/v1/fleet."""
    fields = ("requests", "prompt_tokens", "available", "captured", "delivered", "unreported_requests")
    sums: Json = {field: sum(one[field] or 0 for one in replicas) for field in fields}
    return {"data": bool(replicas), "total": sums, "replicas": list(replicas), "why": why or {}}


def busy(**answers: Json) -> MadeUp:
    """Make up a gateway in front of three upstreams, of which one does not answer its probes."""
    upstreams = [
        upstream("a"),
        upstream("b", "unwell", why="connection refused", failures=12, open=0),
        upstream("c", kind="generic", delivered_ratio=None, failures=1),
    ]
    shares = [
        replica("a", 900, 1_000_000, 900_000, 800_000),
        replica("b", 600, 600_000, 300_000, 350_000),
        replica("c", 40, None, None, None, silent=40),
    ]
    happened = [
        {"at": NOW - 30, "kind": "restart", "title": "Upstream b restarted: 40,000 tokens forgotten", "subject": "b"},
        {"at": NOW - 90, "kind": "policy", "title": "Policy default changed", "subject": "default"},
    ]
    return MadeUp(
        answers={
            "upstreams": {"upstreams": upstreams, "routing": {"large": "prefix"}},
            "fleet": fleet(*shares, why={"prefix": 1000, "load": 400, "chance": 140}),
            "events": {"events": happened},
            **answers,
        }
    )


def alone() -> MadeUp:
    """Make up a gateway without upstreams."""
    own = [upstream("bundled", "bundled", kind="bundled")]
    return MadeUp(answers={"upstreams": {"upstreams": own, "routing": {}}, "fleet": fleet()})
