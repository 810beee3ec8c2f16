"""Chat templates written in the styles that published models use, each over a small tokenizer with its own markers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from gateway.encoding import Encoder
from gateway.prompt import Renderer
from gateway.template import ChatTemplate
from tests.tiny_model import MERGES

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One template. `drops` are the fields that it leaves out on purpose."""

    name: str
    source: str
    specials: tuple[str, ...]
    bos: str = ""
    arguments: tuple[str, ...] = ()  # names that a client may set
    drops: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return self.name

    def renderer(self, *, clock: Callable[[], datetime] = lambda: NOON, **options: Any) -> Renderer:
        """Make prompts in this style."""
        names = {"bos_token": self.bos} if self.bos else {}
        return Renderer(
            Encoder(tokenizer(self.specials)), ChatTemplate(self.source, names=names, clock=clock), **options
        )


def tokenizer(specials: tuple[str, ...]) -> Tokenizer:
    """A byte-level tokenizer whose first ids are `specials`; it trims the blanks off the places of tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [*MERGES, (".", "Ċ"), ("Ċ", "Ċ"), ("Ġ", "Ġ"), ('"', "}"), ('"}', "}"), ("}", "}"), ("l", "l")]
    words = [*specials, *letters, *dict.fromkeys("".join(merge) for merge in merges)]
    made = Tokenizer(models.BPE(vocab={word: place for place, word in enumerate(words)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in specials])
    return made


SMOL = Style(
    name="smol",
    specials=("<|im_start|>", "<|im_end|>"),
    source="""{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are a small model.<|im_end|>\\n' }}
{%- endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    drops=frozenset({"call id", "result id"}),
)

QWEN = Style(
    name="qwen",
    specials=("<|im_start|>", "<|im_end|>"),
    arguments=("enable_thinking",),
    # Ids and the tool's name in a result are not written, nor what was thought before the last question.
    drops=frozenset({"call id", "result id", "result name", "old thinking"}),
    source="""{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n\\nYou may call functions.\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\n\\nAnswer with <tool_call></tool_call> tags.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}{%- set ns.last = messages|length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content.lstrip('\\n') }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {%- set call = call.function if call.function else call %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
)

LLAMA = Style(
    name="llama",
    specials=(
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
        "<|eom_id|>",
    ),
    bos="<|begin_of_text|>",
    arguments=("date_string", "tools_in_user_message"),
    # A turn that calls is written as its calls alone; ids and the tool's name in a result are not written.
    drops=frozenset({"call id", "result id", "result name", "text beside calls", "thinking beside calls"}),
    source="""{{- bos_token }}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}{{- 'Environment: ipython\\n' }}{%- endif %}
{{- 'Today Date: ' + date_string + '\\n\\n' }}
{%- if tools is not none and not tools_in_user_message %}
    {{- 'You have access to these functions.\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- '<|eot_id|>' }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception('No first user message to put the tools into.') }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nAnswer with a call of one of these functions, as ' }}
    {{- '{"name": function name, "parameters": arguments}.\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
    {{- first_user_message + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {%- for call in message.tool_calls %}
            {%- set call = call.function %}
            {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}' }}
        {%- endfor %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}""",
)

MISTRAL = Style(
    name="mistral",
    specials=(
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ),
    bos="<s>",
    # The text of a turn that calls and the tool's name in a result are not written.
    drops=frozenset({"result name", "text beside calls", "thinking beside calls"}),
    source="""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate.") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if tool_call.id|length != 9 %}{{- raise_exception("Tool call IDs should be 9 long!") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + "</s>" }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + "</s>" }}
    {%- elif message["role"] == "tool" %}
        {%- set content = message.content %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if message.tool_call_id|length != 9 %}{{- raise_exception("Tool call IDs should be 9 long!") }}{%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported.") }}
    {%- endif %}
{%- endfor %}""",
)

TRIM = Style(
    name="trim",
    specials=("<bos>", "<turn>", "</turn>"),
    bos="<bos>",
    drops=frozenset({"call id", "result id"}),
    source="""{{ bos_token }}{% for message in messages %}
{{ '<turn>' + message.role + '\\n' + message['content'] | trim + '\\n</turn>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<turn>assistant\\n' }}{% endif %}""",
)

CODER = Style(
    name="coder",
    specials=("<|im_start|>", "<|im_end|>"),
    drops=frozenset({"call id", "result id", "result name"}),
    source="""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}{%- set loop_messages = messages %}
{%- endif %}
{%- if system_message or tools %}{{- "<|im_start|>system\\n" + system_message }}{%- endif %}
{%- if tools %}
    {{- "\\n\\nYou have access to these functions:\\n\\n<tools>" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "\\n<function>\\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}
            {{- "\\n<description>" ~ (tool.description | trim) ~ "</description>" }}
        {%- endif %}
        {%- for param_name, param in tool.parameters.properties | items %}
            {{- "\\n<parameter>\\n<name>" ~ param_name ~ "</name>" }}
            {%- for key in param %}
                {{- "\\n<" ~ key ~ ">" }}
                {{- param[key] | tojson if param[key] is mapping else param[key] | string }}
                {{- "</" ~ key ~ ">" }}
            {%- endfor %}
            {{- "\\n</parameter>" }}
        {%- endfor %}
        {{- "\\n<required>" ~ (tool.parameters.required | default([]) | tojson) ~ "</required>" }}
        {{- "\\n</function>" }}
    {%- endfor %}
    {{- "\\n</tools>" }}
{%- endif %}
{%- if system_message or tools %}{{- "<|im_end|>\\n" }}{%- endif %}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- "<|im_start|>assistant\\n" + message.content }}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- "\\n<tool_call>\\n<function=" + tool_call.name + ">\\n" }}
            {%- for name, value in tool_call.arguments | items %}
                {{- "<parameter=" + name + ">\\n" }}
                {{- value if value is string else value | tojson }}
                {{- "\\n</parameter>\\n" }}
            {%- endfor %}
            {{- "</function>\\n</tool_call>" }}
        {%- endfor %}
        {{- "<|im_end|>\\n" }}
    {%- elif message.role == "tool" %}
        {{- "<|im_start|>user\\n<tool_response>\\n" + message.content + "\\n</tool_response><|im_end|>\\n" }}
    {%- else %}
        {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}""",
)

STYLES = (SMOL, QWEN, LLAMA, MISTRAL, TRIM, CODER)
