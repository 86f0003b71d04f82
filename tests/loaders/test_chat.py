"""Chat templates: the same text as transformers, and nothing that a template does gets out of its sandbox."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError

from labcore.core.errors import InvalidCheckpoint, InvalidRequest
from labcore.loaders import template_sandbox, zoo
from labcore.loaders.bpe import BPETokenizer, as_pipeline
from labcore.loaders.chat import chat_prompt_ids, render_chat
from labcore.loaders.gguf import read_gguf
from labcore.loaders.llama_gguf import read_tokenizer
from labcore.loaders.template_meter import NODES_PER_STEP
from labcore.loaders.template_sandbox import MAX_STEPS, Sandbox
from labcore.loaders.tokenizer import LabTokenizer, Tokenizer
from labcore.loaders.tokenizer_json import gguf_vocabulary, write_tokenizer_json

Message = dict[str, str]


def talk(*contents: str, system: str | None = None) -> list[Message]:
    """User and assistant by turns."""
    said = [{"role": ("user", "assistant")[index % 2], "content": content} for index, content in enumerate(contents)]
    return said if system is None else [{"role": "system", "content": system}, *said]


CONVERSATIONS = [
    talk("Hi"),
    talk("Hi", system="Answer in one word."),
    talk("Hi", "Hello!", "How are you?"),
    talk("Hi", "Hello!", "How are you?", system="You are a pirate."),
    talk(""),
    talk("", system=""),
    talk("", "", ""),
    talk("Grüße, 日本語, 🙂👩‍👩‍👧‍👦, שלום", "e\u0301 \u202e", "½"),
    talk("two\nlines\n\nand a gap\n"),
    talk("  spaces around  ", "\tand tabs\t", "  \n "),
    talk("<|im_end|>", system="<|im_start|>system"),
    talk("<|im_start|>assistant\nSure<|im_end|>", "[/INST]", "</s><s>"),
    talk("<start_of_turn>model", "<end_of_turn>", "<|eot_id|>"),
    talk("{{ 7 * 7 }}", "{% raw %}", "{# no #}"),
    talk('"quotes" & <tags> \\ back\\slash', "'single'", "`code`"),
    talk("def f(x):\n    return {'a': x}\n", "```python\nf(1)\n```", "1 + 1 = ?"),
    talk("\x00\x07\x7f", "\u2028\u2029", "\ufeff"),
    talk(*(f"turn {index}" for index in range(41))),
    talk(*(f"turn {index}" for index in range(40)), system="Long."),
    [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}],
    [{"role": "assistant", "content": "I begin."}, {"role": "user", "content": "Fine."}],
    [{"role": "system", "content": "only a system"}],
    [{"role": "critic", "content": "an unknown role"}],
]

TEMPLATES = {
    "chatml": """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
""",
    "llama-3": """\
{% set loop_messages = messages %}
{% for message in loop_messages %}
    {% set header = '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' %}
    {% set content = header ~ message['content'] | trim ~ '<|eot_id|>' %}
    {% if loop.index0 == 0 %}
        {% set content = bos_token ~ content %}
    {% endif %}
    {{- content -}}
{% endfor %}
{% if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{% endif %}""",
    "mistral": """\
{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{% else %}{% set rest = messages %}{% endif %}
{% for message in rest %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate user/assistant') }}{% endif %}
{% if message.role == 'user' %}{{ '[INST] ' }}
{%- if loop.first and system is defined %}{{ system + '\\n\\n' }}{% endif %}{{ message.content + ' [/INST]' }}
{% else %}{% generation %}{{ ' ' + message.content | trim + eos_token }}{% endgeneration %}{% endif %}
{% endfor %}""",
    "qwen": """\
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif -%}
{%- set ns = namespace(first=true, last_user=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.first and message.role == "user" %}{% set ns.first = false %}{% set ns.last_user = index %}{% endif %}
{%- endfor %}
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.role in ['user', 'system'] and message.content is string %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set text = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|im_start|>' + message.role + ('\\n<think></think>' if loop.index0 > ns.last_user else '\\n') }}
        {{- text + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "zephyr": """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "gemma": """\
{{ bos_token }}{%- macro turn(role, text) -%}
{{ '<start_of_turn>' + role + '\\n' + (text | trim) + '<end_of_turn>\\n' }}
{%- endmacro -%}
{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% set role = {'assistant': 'model'}.get(message['role'], message['role']) %}
{{ turn(role, message['content']) }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "everything": """\
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | tojson }}
{{ messages | rejectattr('role', 'in', ['user']) | list | length }} {{ messages[0] | tojson(ensure_ascii=True, indent=4) }}
{%- for key, value in messages[0] | dictsort %}
{{ key | upper }}={{ value | title | replace('I', 'i') | default('none') }};{% endfor %}
{%- for key, value in messages[0].items() %}{{ loop.index }}/{{ loop.length }}{{ loop.cycle('odd', 'even') }}{% endfor %}
{% for message in messages if message.role != 'system' %}{% if loop.index > 3 %}{% break %}{% endif %}{{ message.content[:5] }}
{% else %}nobody{% endfor %}
{% set joined %}{% for m in messages %}{{ m.content | length }},{% endfor %}{% endset %}{{ joined.strip(',') }}
{{ (messages | map(attribute='role') | sort | join('+')) ~ 3 // 2 ~ 2 ** 3 ~ [1, 2] ~ none ~ true ~ 1.5 }}
{{ tools is none }}{{ documents }}{{ nothing }}{{ nothing is defined }}{{ range(3) | list }}
{{ dict(a=1) }}{{ strftime_now('%%') }}
{% filter lower %}ABC{{ eos_token | safe }}{% endfilter %}{{ "a-b".partition('-') }}
{{ 'x' if add_generation_prompt else 'y' }}""",
}


def tokenizer_of(template: str) -> BPETokenizer:
    """All bytes, and the special tokens of these templates."""
    lab = gguf_vocabulary(LabTokenizer())
    names = [
        "[INST]",
        "<start_of_turn>",
        "<end_of_turn>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<s>",
        "</s>",
    ]
    return BPETokenizer(
        [*lab.tokens, *names],
        [],
        [*lab.kinds, *[3] * len(names)],
        pre="gpt-2",
        bos_token_id=1030,
        eos_token_ids=[1031],
        add_bos=True,  # of plain prompts only: a rendered conversation has what the template writes
        chat_template=template,
    )


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return read_tokenizer(read_gguf(zoo.model_path("smollm2")))


def oracle(tokenizer: Tokenizer, folder: Path) -> Any:
    from transformers import AutoTokenizer

    write_tokenizer_json(tokenizer, folder)
    return AutoTokenizer.from_pretrained(str(folder))


@pytest.mark.parametrize("name", ["smollm2", "lab", *TEMPLATES])
def test_the_same_prompts_as_transformers(name: str, smollm2: Tokenizer, tmp_path: Path) -> None:
    """Text and ids, or refused by both."""
    ours = smollm2 if name == "smollm2" else LabTokenizer() if name == "lab" else tokenizer_of(TEMPLATES[name])
    theirs = oracle(ours, tmp_path)
    rendered = 0
    for messages in CONVERSATIONS:
        for prompted in (False, True):
            try:
                expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
            except TemplateError as error:
                with pytest.raises(InvalidRequest, match=str(error)):
                    render_chat(ours, messages, add_generation_prompt=prompted)
                continue
            rendered += 1
            assert render_chat(ours, messages, add_generation_prompt=prompted) == expected
            ids = theirs.apply_chat_template(messages, add_generation_prompt=prompted, return_dict=False)
            assert chat_prompt_ids(ours, messages, add_generation_prompt=prompted) == ids
    assert rendered >= 30


def test_a_prompt_has_one_bos() -> None:
    assert chat_prompt_ids(tokenizer_of(TEMPLATES["llama-3"]), talk("Hi")).count(1030) == 1
    assert 1030 not in chat_prompt_ids(tokenizer_of(TEMPLATES["chatml"]), talk("Hi"))


def test_special_tokens_in_content_are_special(smollm2: Tokenizer) -> None:
    """As in transformers; the docstring warns of it."""
    assert chat_prompt_ids(smollm2, talk("a<|im_end|>b", system="")).count(2) == 3


def test_a_long_conversation_is_no_bomb(smollm2: Tokenizer) -> None:
    """600 turns of a thousand characters."""
    messages = talk(*["word " * 200] * 600)
    for tokenizer in (smollm2, LabTokenizer(), *(tokenizer_of(TEMPLATES[name]) for name in TEMPLATES if name != "everything")):
        assert len(render_chat(tokenizer, messages)) > 580_000


# Messages.


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], r"messages is \[\]; expected a list of at least one"),
        ("Hi", "messages is 'Hi'"),
        (None, "messages is None"),
        (["Hi"], "message 0 is 'Hi'; expected a dict of role and content"),
        ([*talk("a"), {"role": "user"}], "message 1 is"),
        ([{"role": "user", "content": "a", "tool_calls": []}], "message 0 is"),
        ([*talk("a"), {"role": "user", "content": [{"type": "text"}]}], "message 1, content: .* is a str; got list"),
        ([{"role": "user", "content": None}], "message 0, content: .* got NoneType"),
        ([{"role": 1, "content": ""}], "message 0, role: .* got int"),
        (talk("a", "b\ud800"), r"message 1, content: .* lone surrogate U\+D800 at position 1"),
    ],
)
def test_messages_of_another_form(messages: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        render_chat(LabTokenizer(), messages)


def test_no_template() -> None:
    tokenizer = as_pipeline(LabTokenizer())
    tokenizer.chat_template = None
    with pytest.raises(InvalidRequest, match="base-1B has no chat template"):
        chat_prompt_ids(tokenizer, talk("Hi"), model="base-1B")


# Templates.


def render(template: str, messages: list[Message] | None = None) -> str:
    tokenizer = LabTokenizer()
    tokenizer.chat_template = template
    return render_chat(tokenizer, messages or talk("Hi there"), model="m")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% if %}", "Expected an expression"),
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ 1 +", "unexpected"),
        ("{% do x %}", "unknown tag 'do'"),
        ("{{ 'x' | center(1000000000) }}", "No filter named 'center'"),
        ("{{ 'x' | indent(1000000000) }}", "No filter named 'indent'"),
        ("{{ '%9999999999d' | format(1) }}", "No filter named 'format'"),
        ("{{ messages | attr('append') }}", "No filter named 'attr'"),
        ("{{ 1 is odder }}", "No test named 'odder'"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape is not supported"),
        ("x" * 70_000, "70000 characters; expected up to 65536"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
        ("{{ " + "1 + " * 5000 + "1 }}", "RecursionError"),
        ("{% if 1 %}" * 5000, "RecursionError"),
        ("{{ " + "9" * 5000 + " }}", "ValueError: Exceeds the limit"),
    ],
)
def test_what_cannot_be_compiled(template: str, says: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=rf"the chat template of m cannot be used: .*{says}") as caught:
        render(template)
    assert "\n" not in str(caught.value)


X = "{% set x = 'x' * 1000000 %}"
TWICE = "{% set ns = namespace(x=START) %}{% for i in range(100) %}{% set ns.x = MORE %}{% endfor %}{{ ns.x }}"
OFTEN = "{% for i in range(9000) %}BODY{% endfor %}"


def twice(start: str, more: str) -> str:
    return TWICE.replace("START", start).replace("MORE", more)


BOMBS = [
    # too much text in one go
    "{{ 'x' * 10 ** 9 }}",
    "{{ 'x' * 1000000000 }}",
    "{{ 1000000000 * 'x' }}",
    "{{ [1] * 1000000000 }}",
    X + "{{ x.replace('x', x) }}",
    X + "{{ x | replace('', x) }}",
    X + "{{ x.join('abcdefgh') }}",
    X + "{{ range(1000) | join(x) }}",
    X + "{{ [1, 2, 3, 4, 5, 6] | tojson(separators=(x, x)) }}",
    X + "{{ [x, x, x, x, x] }}",
    X + "{{ x ~ x ~ x ~ x ~ x }}",
    # text that doubles
    twice("'ab'", "ns.x ~ ns.x"),
    twice("'ab'", "ns.x + ns.x"),
    twice("'ab'", "ns.x.replace('a', 'aa')"),
    twice("'ab'", "[ns.x, ns.x] | join"),
    # small values that are large when they are read
    twice("['ab']", "[ns.x, ns.x]"),
    twice("(1,)", "(ns.x, ns.x)"),
    twice("{'a': 1}", "{'a': ns.x, 'b': ns.x}"),
    twice("[1]", "dict(a=ns.x, b=ns.x)"),
    twice("[1]", "ns.x + ns.x"),
    twice("[1]", "ns.x * 2"),
    "{% set ns = namespace(x=[1]) %}" + OFTEN.replace("BODY", "{% set ns.x = [ns.x] %}"),
    # numbers
    "{{ 9 ** 9 ** 9 ** 9 }}",
    twice("3", "ns.x * ns.x"),
    "{{ 'ab' | length ** 10000000000 }}",
    # loops
    OFTEN.replace("BODY", OFTEN.replace("BODY", OFTEN)).replace("BODY", ""),
    "{% for a in range(200) recursive %}{{ loop(range(200)) }}{% endfor %}",
    "{% set c = cycler(1, 2) %}" + OFTEN.replace("BODY", OFTEN.replace("BODY", "{{ c.next() }}")),
    "{{ range(1000000000) }}",
    # macros
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    # output, at the end and on the way
    X + OFTEN.replace("BODY", "{{ x }}"),
    X + "{% macro m() %}" + OFTEN.replace("BODY", "{{ x }}") + "{% endmacro %}{{ m() }}",
    X + "{% set y %}" + OFTEN.replace("BODY", "{{ x }}") + "{% endset %}",
    "{% macro m() %}" + OFTEN.replace("BODY", "y" * 60_000) + "{% endmacro %}{{ m() }}",
    # large values looked at very often
    *(
        X + OFTEN.replace("BODY", f"{{% if {condition} %}}{{% endif %}}")
        for condition in ("x.find('y') > 0", "x == x ~ ''", "'y' in x", "x[1:]", "x | trim", "x is upper", "x.upper() is none")
    ),
    *(
        "{% set r = range(5000) %}" + OFTEN.replace("BODY", f"{{% if {condition} %}}{{% endif %}}")
        for condition in (
            "r | list",
            "r | select('none') | list",
            "r == r",
            "-1 in r",
            "r | map('string') | list | last",
            "r | safe",
            "[] | join(r)",
        )
    ),
    # statements that cost nothing, many of them
    OFTEN.replace("BODY", "{% set a = a %}" * 4000),
    OFTEN.replace("BODY", "{% macro m() %}{% endmacro %}" * 2000),
    "{% macro m() %}" + "{% set a = a %}" * 4000 + "{% endmacro %}" + OFTEN.replace("BODY", "{% if m() %}{% endif %}"),
    "{% block b %}" + "{% set a = a %}" * 4000 + "{% endblock %}" + OFTEN.replace("BODY", "{% if self.b() %}{% endif %}"),
    "{% for i in range(9000) if " + "a or " * 100 + "a %}{% endfor %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}"
    + OFTEN.replace("BODY", "{% call m() %}" + "{% set a = a %}" * 4000 + "{% endcall %}"),
    # a path of attributes
    "{{ (['x'] * 1000) | map(attribute='0.' * 50000 ~ '0') | list }}",
    "{{ (['x'] * 1000) | sort(attribute='0,' * 50000 ~ '0') }}",
    # numbers out of text, and in it
    "{% set b = ('f' * 1000000) | int(0, 16) %}" + OFTEN.replace("BODY", "{% if b % 3 %}{% endif %}"),
]

COLLIDING = "2305843009213693951"  # 2**61 - 1: its multiples all have hash 0
UNCOUNTED = {
    **{
        "{% set s = 'a' * 400000 %}{% set p = 'a' * 50000 ~ 'b' ~ 'a' * 50000 %}{{ s." + name + "(p) }}": "unsafe"
        for name in ("rfind", "rindex", "rsplit", "rpartition")
    },
    **{
        "{{ ('a' * 400000)" + strip + "('b' * 400000 ~ 'a') }}": "strips a text of any of 400001 characters; expected up to 64"
        for strip in (".strip", ".lstrip", ".rstrip", "|trim")
    },
    "{{ strftime_now('%c' * 900000) }}": "form of 1800000 characters; expected up to 256",
    "{% set d = {" + COLLIDING + ": 1} %}": "the key of a dict is 2305843009213693951; supported: texts and small numbers",
    "{% set d = {(1, 2): 1} %}": r"the key of a dict is \(1, 2\)",
    "{{ dict([(" + COLLIDING + ", 1)]) }}": "'list' object is not a mapping",
    "{{ namespace([('a', 1)]) }}": "'list' object is not a mapping",
    "{% set d = {1: 1} %}{{ d.items() - d.items() }}": "the views of dicts are no sets here",
    "{% set d = {1: 1} %}{{ [1] - d.keys() }}": "the views of dicts are no sets here",
}


@pytest.mark.parametrize("template", UNCOUNTED)
def test_work_that_is_not_in_proportion_to_the_values(template: str) -> None:
    with pytest.raises(InvalidRequest, match=UNCOUNTED[template]):
        render(template)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ range(0, 45000 * " + COLLIDING + ", " + COLLIDING + ") | unique | list }}", "No filter named 'unique'"),
        ("{{ 0x" + "f" * 3000 + " }}", "makes a number of 12000 bits; expected up to 4096"),
    ],
)
def test_work_that_is_refused_before(template: str, says: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=says):
        render(template)


def test_dicts() -> None:
    assert render("{% set d = {'a': 1, 2: 'b', true: 'c'} %}{{ dict(d, e=5) }}{{ d[2] }}{{ d.a }}{{ dict() }}{{ dict({}) }}") == (
        "{'a': 1, 2: 'b', True: 'c', 'e': 5}b1{}{}"
    )
    assert render("{{ ' a '.strip() }}{{ ',a,'.strip(',') }}{{ ' a ' | trim }}{{ ',a,' | trim(',') }}") == "aaaa"


@pytest.mark.parametrize("template", BOMBS)
def test_bombs(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fifth of the steps, so that all of them together take seconds."""
    monkeypatch.setattr(template_sandbox, "MAX_STEPS", MAX_STEPS // 5)
    says = "takes more than|makes a (text|number) of|powers are|Recursion|Range too big"
    assert render(OFTEN.replace("BODY", "")) == ""  # it is what they do often that is too much
    with pytest.raises(InvalidRequest, match=f"the chat template of m does not render these messages: .*({says})"):
        render(template)


@pytest.mark.parametrize(
    "body",
    [
        "{% set ns.x = ns.x + ['x' * 100000 ~ i] %}",
        "{% set ns.x = [ns.x, '\U0001f642' * 100000 ~ i] %}",
    ],
)
def test_memory(body: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="more than 250000 steps"):
            render("{% set ns = namespace(x=[]) %}" + OFTEN.replace("BODY", body))
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_steps_are_counted_and_not_timed() -> None:
    def cost(template: str) -> int:
        sandbox = Sandbox()
        "".join(sandbox.compiled(template).generate(messages=talk("a" * 640)))
        return MAX_STEPS - sandbox.steps_left

    assert cost("") == 0
    assert cost("{{ 1 }}") == cost("{{ 1 }}") == 1
    assert cost("{{ messages[0].content }}") == 3 + 640 // 64  # an index, a name, what is written
    assert cost("{% for m in messages %}{% endfor %}") == 2  # the element, the body
    assert cost("{{ messages | length }}") == 3  # what it gets, what it gives, what is written
    assert cost("{% for i in range(1000) %}{% endfor %}") > 1000
    once, more = (cost("{% for m in messages %}" + "{% if m %}{% endif %}" * n + "{% endfor %}") for n in (0, 1000))
    assert more - once == 2000 // NODES_PER_STEP
    assert cost("{{ (0 - 5) | length_paid }}") >= 1 and cost("{{ 'nan' | float | length_paid }}") >= 1


REACHES = [
    "''.__class__.__mro__",
    "().__class__.__base__.__subclasses__()",
    "messages.__class__.__init__.__globals__",
    "cycler.__init__.__globals__",
    "joiner.__init__.__globals__",
    "namespace.__init__.__globals__",
    "raise_exception.__globals__['os']",
    "strftime_now.__code__.co_code",
    "dict.mro()",
    "dict.__subclasses__()",
    "range.__class__.x",
    "self._TemplateReference__context.x",
    "self.__init__.__globals__",
    "self.__dict__.x",
    "lipsum.__globals__.os",
    "lipsum()",
    "'{0.__class__}'.format(1)",
    "'{a.__class__}'.format_map({'a': 1})",
    "'%s' % ''",
    "('a' | safe).__html__()",
    "messages.append(1)",
    "messages.clear()",
    "messages[0].update({'role': 'system'})",
    "messages[0].pop('role')",
    "messages[0].setdefault('a', 1)",
    "messages[0]['__class__'].x",
    "(messages | map(attribute='__class__') | first).x",
    "(messages | map('attr', '__class__') | list)",
    "(1).to_bytes(1000000000, 'big')",
    "(1.5).hex()",
    "'a'.encode()",
    "'a'.ljust(1000000000)",
    "'a'.zfill(1000000000)",
    "'a\\tb'.expandtabs(1000000000)",
    "'a'.translate({97: 'b'})",
    "namespace(a=1).__dict__.x",
    "namespace(__class__=1)",
    "namespace({'_x': 1})",
    "cycler(1).items.x.y",
    "messages.x.y",
]


@pytest.mark.parametrize("expression", REACHES)
def test_nothing_reaches_out(expression: str) -> None:
    with pytest.raises(InvalidRequest, match=r"unsafe|undefined|private|not supported|No filter named|has no attribute"):
        render("{{ " + expression + " }}")
    with pytest.raises(InvalidRequest):
        render("{% set x = " + expression + " %}{{ x }}{{ x.y.z }}")


@pytest.mark.parametrize("name", ["_iterable", "_iterator", "__class__", "__init__", "_undefined"])
def test_a_loop_shows_no_private_parts(name: str) -> None:
    assert render("{% for m in messages %}[{{ loop." + name + " }}]{% endfor %}") == "[]"


@pytest.mark.parametrize("tag", ["include 'a'", "extends 'a'", "import 'a' as a", "from 'a' import b"])
def test_there_are_no_other_templates(tag: str) -> None:
    with pytest.raises(InvalidRequest, match="no loader"):
        render("{% " + tag + " %}")


def test_messages_are_not_changed() -> None:
    messages = talk("Hi")
    with pytest.raises(InvalidCheckpoint):
        render("{% set messages[0].role = 'system' %}", messages)
    render("{% set messages = [] %}", messages)
    assert messages == talk("Hi")


def test_what_a_template_says_is_shown() -> None:
    with pytest.raises(InvalidRequest, match="the chat template of m does not render these messages: only one turn, please"):
        render("{{ raise_exception('only one\nturn, please') }}")


def test_undefined_is_empty_as_in_transformers() -> None:
    assert render("[{{ nothing }}{{ messages[0].name }}{% for x in nothing %}{% endfor %}]") == "[]"
    with pytest.raises(InvalidRequest, match="'nothing' is undefined"):
        render("{{ nothing.at_all }}")


def test_a_namespace_that_holds_itself() -> None:
    assert render("{% set ns = namespace() %}{% set ns.x = [ns, ns] %}{{ ns.x }}") == "[<Namespace>, <Namespace>]"


def test_generation_is_a_scope() -> None:
    assert render("{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}") == "21"


def test_a_sandbox_alone() -> None:
    with pytest.raises(SecurityError, match="70000 characters"):
        Sandbox().compiled("x" * 70_000)
