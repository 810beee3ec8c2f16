"""Answers as models of each convention write them, and what must be read out of them.

The first item of what is expected is the text, the others are calls: name and arguments.
"""

from __future__ import annotations

from typing import Any

Row = tuple[str, str, str, list[tuple[str, dict[str, Any]]]]

HERMES: list[Row] = [
    (
        "Qwen2.5-7B-Instruct, one call",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin", "unit": "celsius"}}\n</tool_call>',
        "",
        [("get_weather", {"city": "Berlin", "unit": "celsius"})],
    ),
    (
        "Qwen2.5, parallel calls",
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        ),
        "",
        [("get_weather", {"city": "Berlin"}), ("get_weather", {"city": "Paris"})],
    ),
    (
        "Qwen3-8B, after its thoughts",
        (
            "<think>\nThe user wants the stock.\n</think>\n\n<tool_call>\n"
            '{"name": "add_stock", "arguments": {"item": {"sku": "A-1", "tags": ["new", "red"]}, "count": 3}}\n'
            "</tool_call>"
        ),
        "<think>\nThe user wants the stock.\n</think>",
        [("add_stock", {"item": {"sku": "A-1", "tags": ["new", "red"]}, "count": 3})],
    ),
    (
        "Hermes-2-Pro, arguments before the name",
        'Let me look.\n<tool_call>\n{"arguments": {"query": "a } in \\"text\\""}, "name": "search"}\n</tool_call>\n',
        "Let me look.",
        [("search", {"query": 'a } in "text"'})],
    ),
    (
        "Qwen2.5, Unicode raw and escaped",
        '<tool_call>\n{"name": "search", "arguments": {"query": "caf\\u00e9 ☕ \\ud83d\\ude00"}}\n</tool_call>',
        "",
        [("search", {"query": "café ☕ 😀"})],
    ),
    (
        "Qwen2.5-0.5B, arguments as a string",
        '<tool_call>\n{"name": "search", "arguments": "{\\"query\\": \\"x\\"}"}\n</tool_call>',
        "",
        [("search", {"query": "x"})],
    ),
    (
        "Hermes-2-Pro, a list in one pair of tags",
        '<tool_call>\n[{"name": "search", "arguments": {}}, {"name": "get_time", "arguments": null}]\n</tool_call>',
        "",
        [("search", {}), ("get_time", {})],
    ),
    (
        "Qwen2.5-0.5B, the last brace is missing",
        '<tool_call>\n{"name": "search", "arguments": {"query": "x"}\n</tool_call>',
        "",
        [("search", {"query": "x"})],
    ),
    (
        "Qwen2.5-Coder, raw line breaks in a string",
        '<tool_call>\n{"name": "search", "arguments": {"query": "one\ntwo\t3"}}\n</tool_call>',
        "",
        [("search", {"query": "one\ntwo\t3"})],
    ),
    (
        "Qwen2.5, tags opened twice",
        '<tool_call>\n{"name": "get_time"}\n<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>',
        "",
        [("get_time", {}), ("search", {"query": "x"})],
    ),
    (
        "Qwen2.5, an unknown tool",
        'So: <tool_call>\n{"name": "rm", "arguments": {"path": "/"}}\n</tool_call>',
        'So: <tool_call>\n{"name": "rm", "arguments": {"path": "/"}}\n</tool_call>',
        [],
    ),
    (
        "Qwen2.5-0.5B, Python instead of JSON",
        "<tool_call>\n{'name': 'search', 'arguments': {}}\n</tool_call>",
        "<tool_call>\n{'name': 'search', 'arguments': {}}\n</tool_call>",
        [],
    ),
    (
        "an answer cut off before its call began",
        'Yes. <tool_call>\n{"name": "sea',
        'Yes. <tool_call>\n{"name": "sea',
        [],
    ),
    (
        "a marker explained",
        "Calls begin with `<tool_call>` and end.",
        "Calls begin with `<tool_call>` and end.",
        [],
    ),
    (
        "arguments that are no object",
        '<tool_call>{"name": "search", "arguments": ["x"]}</tool_call>',
        '<tool_call>{"name": "search", "arguments": ["x"]}</tool_call>',
        [],
    ),
    (
        "text between calls and after them",
        (
            'A <tool_call>{"name": "get_time", "arguments": {}}</tool_call> and B '
            '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>\nC\n'
        ),
        "Aand BC\n",
        [("get_time", {}), ("get_time", {})],
    ),
]

LLAMA3: list[Row] = [
    (
        "Llama-3.1-8B-Instruct",
        '{"name": "get_weather", "parameters": {"city": "San Francisco", "days": 3}}',
        "",
        [("get_weather", {"city": "San Francisco", "days": 3})],
    ),
    (
        "Llama-3.1-70B, behind the tag",
        '<|python_tag|>{"name": "search", "parameters": {"query": "x"}}',
        "",
        [("search", {"query": "x"})],
    ),
    (
        "Llama-3.2-3B, with a type",
        '{"type": "function", "name": "search", "parameters": {"query": "naïve \\u2615"}}',
        "",
        [("search", {"query": "naïve ☕"})],
    ),
    (
        "Llama-3.2-1B, the call under function",
        '{"type": "function", "function": {"name": "search", "parameters": {"query": "x"}}}',
        "",
        [("search", {"query": "x"})],
    ),
    ("Llama-3.2-1B, function as the name", '{"function": "get_time", "parameters": {}}', "", [("get_time", {})]),
    (
        "Llama-3.3, separated by semicolons",
        '{"name": "get_weather", "parameters": {"city": "Rome"}}; {"name": "get_time", "parameters": {}}',
        "",
        [("get_weather", {"city": "Rome"}), ("get_time", {})],
    ),
    (
        "Llama-3.3, on lines",
        '{"name": "get_time", "parameters": {}}\n{"name": "add_stock", "parameters": {"item": {"a": [{}, []]}}}\n',
        "",
        [("get_time", {}), ("add_stock", {"item": {"a": [{}, []]}})],
    ),
    (
        "Llama-3.1, text before the tag",
        (
            'I look it up.<|python_tag|>{"name": "get_time", "parameters": {}};<|python_tag|>{"name": "get_time", '
            '"parameters": null};'
        ),
        "I look it up.",
        [("get_time", {}), ("get_time", {})],
    ),
    (
        "Llama-3.1, a built-in tool",
        '<|python_tag|>brave_search.call(query="x")',
        '<|python_tag|>brave_search.call(query="x")',
        [],
    ),
    ("a JSON answer", '{"city": "Rome", "name": "get_time"}', '{"city": "Rome", "name": "get_time"}', []),
    ("no parameters", '{"name": "get_time"}', '{"name": "get_time"}', []),
    ("an unknown tool", '{"name": "rm", "parameters": {}}', '{"name": "rm", "parameters": {}}', []),
    (
        "text before an object",
        'Here: {"name": "get_time", "parameters": {}}',
        'Here: {"name": "get_time", "parameters": {}}',
        [],
    ),
    (
        "text behind a separator",
        '{"name": "get_time", "parameters": {}}; that is all',
        "; that is all",
        [("get_time", {})],
    ),
]

MISTRAL: list[Row] = [
    (
        "Mistral-7B-Instruct-v0.3",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}]',
        "",
        [("get_weather", {"city": "Paris", "unit": "celsius"})],
    ),
    (
        "Mistral-Nemo, parallel calls",
        '[TOOL_CALLS][{"name": "get_time", "arguments": {}}, {"name": "search", "arguments": {"query": "x"}}]',
        "",
        [("get_time", {}), ("search", {"query": "x"})],
    ),
    (
        "Mistral-Nemo, with ids",
        '[TOOL_CALLS][{"name": "search", "arguments": {"query": "\\u00fcber"}, "id": "abcdefghi"}]',
        "",
        [("search", {"query": "über"})],
    ),
    (
        "Mistral-Small-3.2, with an id",
        '[TOOL_CALLS]search[CALL_ID]3f9Ab0xYz[ARGS]{"query": "[1]"}',
        "",
        [("search", {"query": "[1]"})],
    ),
    (
        "Magistral, two by name",
        'First.\n[TOOL_CALLS]get_time[ARGS]{}[TOOL_CALLS]add_stock[ARGS]{"item": {"sku": "]"}, "count": 1e0}',
        "First.",
        [("get_time", {}), ("add_stock", {"item": {"sku": "]"}, "count": 1.0})],
    ),
    ("Devstral, no marker before arguments", '[TOOL_CALLS]search{"query": "x"}', "", [("search", {"query": "x"})]),
    (
        "Mistral-7B, the marker is missing",
        ' [{"name": "search", "arguments": {}}]',
        ' [{"name": "search", "arguments": {}}]',
        [],
    ),
    ("an unknown tool by name", "[TOOL_CALLS]rm[ARGS]{}", "[TOOL_CALLS]rm[ARGS]{}", []),
    (
        "an unknown tool behind a known one",
        '[TOOL_CALLS][{"name": "get_time", "arguments": {}}, {"name": "rm", "arguments": {}}]',
        ', {"name": "rm", "arguments": {}}]',
        [("get_time", {})],
    ),
    ("an empty list", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ("a marker of another kind", "[TOOL_CALLS]search[AR]{}", "[TOOL_CALLS]search[AR]{}", []),
]

JSON: list[Row] = [
    ("an object", ' {"name": "search", "arguments": {"query": "x"}}\n', "", [("search", {"query": "x"})]),
    ("parameters", '{"name": "search", "parameters": {"query": "x"}}', "", [("search", {"query": "x"})]),
    (
        "a list",
        '[{"name": "get_time", "arguments": {}},\n {"name": "search", "arguments": {"query": "\\n"}}]',
        "",
        [("get_time", {}), ("search", {"query": "\n"})],
    ),
    (
        "a fence",
        '```json\n{\n  "name": "add_stock",\n  "arguments": {\n    "item": {"sku": "`"}\n  }\n}\n```\n',
        "",
        [("add_stock", {"item": {"sku": "`"}})],
    ),
    (
        "a fence without a language, and more",
        '```\n[{"name": "get_time", "arguments": {}}]\n```\nDone.',
        "Done.",
        [("get_time", {})],
    ),
    ("a fence around code", "```js\n{}\n```", "```js\n{}\n```", []),
    ("a list of numbers", "[1, 2]", "[1, 2]", []),
    ("a JSON answer", '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
    (
        "text first",
        'OK {"name": "get_time", "arguments": {}}',
        'OK {"name": "get_time", "arguments": {}}',
        [],
    ),
    ("a broken object", '{"name": "search", "arguments": nil}', '{"name": "search", "arguments": nil}', []),
]
