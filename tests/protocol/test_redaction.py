"""Messages without their secrets: what goes, what stays, and that the result is one line of JSON."""

import json
import string
from base64 import b64decode, b64encode, urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol import redaction
from acp_gateway.protocol.redaction import MAX_SIZE, MAX_STEPS, MIN_LIMIT, MIN_STEPS, redact, redact_json
from acp_gateway.protocol.secret_patterns import HIDDEN, OPTION, SHAPES, is_secret_name
from tests.fuzz.effort import effort

LIMIT = 1_000_000
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"


def redacted(value: Any) -> Any:
    return json.loads(redact(json.dumps(value).encode(), LIMIT))


@pytest.mark.parametrize(
    "name",
    [
        *("token", "tokens", "accessToken", "access_token", "refresh-token", "GITHUB_TOKEN", "secret", "clientSecret"),
        *("password", "Password", "passphrase", "apiKey", "api_key", "API-KEY", "x-api-key", "authorization"),
        *("Proxy-Authorization", "cookie", "Set-Cookie", "credential", "credentials", "privateKey", "private_key"),
        *("creds", "signingKey", "encryption_key", "authKey", "authHeader", "bearer", "idJwt"),
        *("pwd", "DB_PWD", "pass", "dbPass", "user.pass", "Api Key", "api.key", "PASSWORD_1", "password2", "token 3"),
        *("private_key_pem", "privateKeyPem", "PRIVATE-KEY-PEM", "secretValue", "token_string", "passwd", "passcode"),
        *("accessKeys", "auth_tokens", "connectionString", "pas\u017fword", "PA\u017f\u017f", "Set Cookie"),
    ],
)
@pytest.mark.parametrize("value", ["hunter2", {"a": "b"}, ["c", {"d": []}]], ids=["text", "{}", "[]"])
def test_the_value_of_a_member_that_is_called_a_secret_goes(name: str, value: object) -> None:
    message = {"result": [{"before": 1, name: value, "after": 2}], "end": 3}
    assert redacted(message) == {"result": [{"before": 1, name: HIDDEN, "after": 2}], "end": 3}


def test_a_number_may_be_a_secret_too() -> None:
    assert redacted({"password": 1234}) == {"password": HIDDEN}


def in_base64(content: bytes) -> str:
    return b64encode(content).decode()


@pytest.mark.parametrize("name", ["data", "blob"])
@pytest.mark.parametrize(
    "output",
    [
        b"$ env\nAPI_KEY=hunter2222\nHOME=/root\n",
        b"\x1b[1mAPI_KEY=hunter2222 \x1b[0m\n",
        b"caf\xe9 API_KEY=hunter2222\n",
    ],
    ids=["plain", "coloured", "of another encoding"],
)
def test_a_secret_in_the_output_of_a_terminal_goes_from_its_base64(name: str, output: bytes) -> None:
    update = {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", name: in_base64(output)}
    shown = redacted({"params": {"update": update}})["params"]["update"]
    assert b64decode(shown.pop(name)) == output.replace(b"hunter2222", HIDDEN.encode())
    assert shown == {"sessionUpdate": "terminal_output_chunk", "terminalId": "t"}


def test_base64_of_the_other_alphabet_and_without_padding_is_read_too() -> None:
    for output in (b"???? API_KEY=hunter2222", b"???~ API_KEY=hunter2222 ", b">>>>? API_KEY=hunter2222"):
        data = urlsafe_b64encode(output).decode().rstrip("=")
        assert b64decode(redacted({"data": data})["data"]) == output.replace(b"hunter2222", HIDDEN.encode())


def test_bytes_in_base64_that_are_not_a_text_are_left_out() -> None:
    image = {"type": "image", "mimeType": "image/png", "data": in_base64(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))}
    assert redacted(image) == {**image, "data": f"{HIDDEN} 264 bytes of base64 left out"}


@pytest.mark.parametrize(
    "value", ["done", "cancelled", "", "AAEC", "a b c d", in_base64(b"42 passed in 0.12 s"), "not base64: API", "=" * 4]
)
def test_data_that_has_no_secret_stays(value: str) -> None:
    assert redacted({"data": value}) == {"data": value}


def test_base64_beyond_the_steps_of_a_message_is_left_out() -> None:
    output = in_base64(b"password token secret authorization: API_KEY=hunter2222 " * 3000)
    shown = redacted({"update": {"data": output}, "after": 1})
    assert shown == {"update": {"data": f"{HIDDEN} {len(output) + 16} bytes left out"}}


@pytest.mark.parametrize(
    "message",
    [
        {"token": None, "secret": True, "password": False, "headers": None, "env": False},
        {"usage": {"tokens": 5, "inputTokens": 7, "maxTokens": 9}},
        {"_meta": {"progressToken": "p1"}},
        {"authMethods": [{"id": "api-key", "name": "A key", "vars": [{"name": "API_KEY", "secret": True}]}]},
        {"auth": {"terminal": True}, "author": "ann", "keys": ["a"], "tokenizer": "x"},
        {"method": "session/prompt", "params": {"prompt": [{"type": "text", "text": "forget the password"}]}},
        {"text": "the bearer of good news, Bearer-like; https://host:80/a@b; task-sk-1; a=b&c=d; --token-file x"},
        ["--model", "x", "--tokens", "x"],
        {"text": "PWD=/home/ann OLDPWD=/srv COMPASS=north --bypass=all 'compass': 'north' PASSED=12"},
        {"text": "--token --password and --token is needed; x-key, x-token: ", "header": "h", "environ": "e"},
        {"text": "--- PASS: Test1of2 (0.01s)\nunexpected token: ident1; tokens: 123456; token_count: a12345"},
        {"text": "password = input('x1'); api_key: str; key = process.env.API_KEY1; token = get_token1()"},
        {"text": "https://github.com/a@v1.2.3 git@github.com https://registry.example.com@1 secret: $A12345"},
        [],
        {},
        "text",
        7,
        None,
    ],
)
def test_what_is_not_a_secret_stays(message: object) -> None:
    assert redacted(message) == message


@pytest.mark.parametrize(
    "name",
    [
        *("passed", "passing", "tests_passed", "passage", "passenger", "compass", "bypass", "byPass", "trespass"),
        *("tokens_used", "inputTokens", "maxTokens", "token_count", "tokenizer", "total_tokens", "numTokens"),
        *("secretary", "author", "authors", "authMethods", "authenticated", "cookies_enabled", "password_required"),
        *("key", "keys", "hotkey", "keyboard", "publicKey", "key_id", "primaryKey", "cwd", "pwned", "pem", "value"),
        *("string", "hex", "base64", "pathname", "bearing", "credentialing", "progressToken", "progress_token"),
    ],
)
def test_a_name_that_only_sounds_like_a_secrets_hides_nothing(name: str) -> None:
    message = {name: "hunter2", "a": [{name: ["x", 1]}]}
    assert redacted(message) == message


@pytest.mark.parametrize("name", ["env", "headers", "HTTP_HEADERS", "envVars", "environmentVariables", "extraHeaders"])
def test_the_names_in_a_list_of_values_stay_and_the_values_go(name: str) -> None:
    entries = [{"name": "A", "value": "x", "more": ["x"]}, {"key": "B", "value": 1}, {"name": 5}, {"value": None}]
    assert redacted({name: entries, "after": "y"}) == {
        name: [
            {"name": "A", "value": HIDDEN, "more": HIDDEN},
            {"key": "B", "value": HIDDEN},
            {"name": HIDDEN},
            {"value": None},
        ],
        "after": "y",
    }


def test_a_list_of_values_may_be_an_object_or_anything_else() -> None:
    assert redacted({"env": {"A": "x", "name": "x", "B": {"C": "x"}}}) == {
        "env": {"A": HIDDEN, "name": HIDDEN, "B": HIDDEN}
    }
    assert redacted({"env": ["A=x", 5, ["x"]]}) == {"env": [HIDDEN, HIDDEN, HIDDEN]}
    assert redacted({"headers": "Cookie: x"}) == {"headers": HIDDEN}


@pytest.mark.parametrize("method", ["authenticate", "_auth/login", "Authenticate"])
def test_what_logs_an_agent_in_goes_but_for_the_way_that_is_used(method: str) -> None:
    params = {"methodId": "key", "auth": "x", "number": 5, "flag": True, "_meta": {"a": "x"}, "list": ["x"]}
    kept = {"methodId": "key", "auth": HIDDEN, "number": HIDDEN, "flag": True, "_meta": HIDDEN, "list": HIDDEN}
    assert redacted({"method": method, "params": params}) == {"method": method, "params": kept}
    assert redacted({"params": params, "method": method}) == {"params": kept, "method": method}
    assert redacted({"method": method, "params": {"methodId": 5}}) == {"method": method, "params": {"methodId": HIDDEN}}


def test_the_accounts_of_an_agent_go_but_for_which_is_active() -> None:
    account = {"label": "work", "active": True, "name": "Ann", "email": "ann@example.com", "_meta": {"a": "x"}}
    hidden = {"label": HIDDEN, "active": True, "name": HIDDEN, "email": HIDDEN, "_meta": HIDDEN}
    assert redacted({"result": {"state": "in", "accounts": [account, "x", ["x"], None]}}) == {
        "result": {"state": "in", "accounts": [hidden, HIDDEN, HIDDEN, None]}
    }
    assert redacted({"accounts": "x", "after": "y"}) == {"accounts": HIDDEN, "after": "y"}
    assert redacted({"accounts": {"a": "x", "b": {"c": "x"}}}) == {"accounts": {"a": HIDDEN, "b": HIDDEN}}


def test_the_headers_of_a_provider_go() -> None:
    params = {"providerId": "main", "apiType": "openai", "baseUrl": "https://h/v1", "headers": {"Authorization": "x"}}
    assert redacted({"method": "providers/set", "params": params})["params"] == params | {
        "headers": {"Authorization": HIDDEN}
    }


def test_only_the_params_of_a_message_log_in() -> None:
    message = {"method": "authenticate", "more": {"params": {"a": "x"}}}
    assert redacted(message) == message
    assert redacted({"method": 5, "params": {"a": "x"}}) == {"method": 5, "params": {"a": "x"}}


def test_an_argument_behind_one_that_names_a_secret_goes() -> None:
    arguments = ["--api-key", "x", "y", "--token", 5, "-secret", None, "z", "--password", ["x"], "w"]
    kept = ["--api-key", HIDDEN, "y", "--token", HIDDEN, "-secret", None, "z", "--password", ["x"], "w"]
    assert redacted({"args": arguments}) == {"args": kept}


def test_a_secret_in_escapes_is_found() -> None:
    assert redact(rb'{"\u0074oken":"x","a":"\u0061cpgw_abc"}', LIMIT) == rb'{"token":"\u2026","a":"acpgw_\u2026"}'


def test_what_stays_is_spelled_as_it_was() -> None:
    text = rb'{"a":1e999,"b":1.10,"a":-0,"c":"\ud83d","d":[true,false,null,{}],"e":""}'
    assert redact(text, LIMIT) == text


def test_the_result_is_one_line_of_ascii_that_no_terminal_obeys() -> None:
    text = '{ "a" :\r\n\t[ 1 , "é\x7f\u2028\u202e" ]\n}'
    assert redact(text.encode(), LIMIT) == rb'{"a":[1,"\u00e9\u007f\u2028\u202e"]}'


@pytest.mark.parametrize(
    "text",
    [b"", b" ", b"npm banner", b'{"token":"x"', b'{"a":"\\q"}', b'{"a":"\xff"}', b"1 2", b"{} acpgw_abc", b'{"a":NaN}'],
)
def test_what_is_not_json_is_told_by_its_size_alone(text: bytes) -> None:
    assert redact(text, LIMIT) == b'"%d bytes that are not JSON"' % len(text)
    assert redact_json(text, LIMIT) is None


def test_what_the_gateway_does_not_take_for_a_message_because_of_its_depth_is_told_by_its_size_alone() -> None:
    deep = b"[" * 400 + b'{"token":"x"}' + b"]" * 400
    assert redact(deep, LIMIT) == deep.replace(b'"x"', rb'"\u2026"')
    assert redact(b'{"token":' + b"[" * 400 + b"]" * 400 + b"}", LIMIT) == rb'{"token":"\u2026"}'
    assert redact(b"[" * 100_000 + b"]" * 100_000, LIMIT) == b'"200000 bytes that are not JSON"'


def test_a_long_string_is_cut_and_what_is_behind_it_stays() -> None:
    result = json.loads(redact(json.dumps({"a": "x" * 3000, "id": 1}).encode(), 1000))
    assert result["id"] == 1
    shown, _, missing = result["a"].partition(HIDDEN)
    assert set(shown) == {"x"}
    assert missing == f" {3000 - len(shown)} characters left out"


def test_what_has_no_room_is_left_out_with_a_note_and_the_rest_is_closed() -> None:
    text = b'{"a":[{"b":' + b"123456," * 50 + b'1]},"c":2}'
    text = text.replace(b'"b":', b'"b":[', 1).replace(b"1]}", b"1]}]", 1)
    result = redact(text, 200)
    assert len(result) <= 200
    assert result.startswith(b'{"a":[{"b":[123456,123456,')
    left_out = int(json.loads(result)["a"][0]["b"][-1].split()[1])
    assert text[len(text) - left_out :].startswith(b"123456,")


def test_wherever_it_is_cut_the_result_is_json_within_the_limit() -> None:
    text = b'{"jsonrpc":"2.0","id":%b,"params":{"%b":[[[[1,2,"%b"]]],{}],"b":"%b","c":{"d":{}}},"e":"%b"}' % (
        *(b"1" * 60, b"n" * 30, b"x" * 300),
        *(b"\xf0\x9f\x98\x80" * 40, b"end"),
    )
    for limit in range(MIN_LIMIT, 500):
        result = redact(text, limit)
        assert len(result) <= limit
        json.loads(result)


@pytest.mark.parametrize("name", ["a", "token"])
def test_redaction_cuts_a_message_of_very_many_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MAX_STEPS", 100)
    result = redact(b'{"%b":[[%b1]],"b":2}' % (name.encode(), b"1," * 100), LIMIT)
    assert b" bytes left out" in result
    assert "b" not in json.loads(result)


def test_a_member_is_left_out_if_its_name_is_longer_than_the_limit() -> None:
    assert list(json.loads(redact(json.dumps({"a": 1, "n" * 20_000: 2, "b": 3}).encode(), 400))) == ["a", "\u2026"]


def test_a_lone_number_that_is_too_long_is_left_out() -> None:
    assert redact(b"1" * 500, 200) == rb'"\u2026 500 bytes left out"'


def test_no_half_of_a_secret_stays_where_a_string_is_cut() -> None:
    for before in range(300):
        text = " " * before + "ghp_0123456789abcdefABCDEF" + " " * 10_000
        assert b"ghp" not in redact(json.dumps([text]).encode(), 400)


def test_a_string_that_was_searched_for_secrets_alone_is_noted_by_its_size() -> None:
    text = KEY + "A" * 50_000
    assert json.loads(redact(json.dumps([text]).encode(), 400)) == [f"{HIDDEN} {len(text)} characters left out"]


SECRET = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda values: (
        st.lists(values, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "sessionId", "é"]), values, max_size=4)
    ),
    max_leaves=20,
)


@st.composite
def planted(draw: st.DrawFn) -> tuple[str, Any]:
    """A secret, and a message with it in it."""
    secret = draw(SECRET)
    node: Any = draw(
        st.sampled_from(
            [
                {"password": secret},
                {"env": [{"name": "A", "value": secret}]},
                {"headers": {"A": secret}},
                {"env": secret},
                {"token": [{"deep": [secret]}]},
                ["--secret", secret],
                f"Bearer {secret}",
                f"see acpgwo_{secret}.",
                {f"sk-{secret}": 1},
                f"https://ann:{secret}@host",
            ]
        )
    )
    for _ in range(draw(st.integers(0, 5))):
        beside = draw(PLAIN.filter(lambda value: secret not in json.dumps(value)))
        node = draw(st.sampled_from([[beside, node, beside], {"x": beside, "y": node, "z": beside}, [node]]))
    return secret, node


@effort(40)
@given(planted(), st.integers(MIN_LIMIT, 2000), st.booleans())
def test_no_planted_secret_comes_through(found: tuple[str, Any], limit: int, ascii_only: bool) -> None:
    secret, message = found
    result = redact(json.dumps(message, ensure_ascii=ascii_only).encode(), limit)
    assert secret.encode() not in result
    assert len(result) <= limit
    assert b"\n" not in result
    json.loads(result)


@given(PLAIN, st.sampled_from([None, 1]))
def test_a_message_without_secrets_keeps_its_values(message: Any, indent: int | None) -> None:
    assert json.loads(redact(json.dumps(message, indent=indent).encode(), LIMIT)) == message


@given(st.binary(max_size=200))
def test_whatever_comes_the_result_is_one_line_of_json(text: bytes) -> None:
    result = redact(text, MIN_LIMIT)
    assert len(result) <= MIN_LIMIT
    assert result.isascii()
    assert b"\n" not in result
    json.loads(result)


# Work


@pytest.mark.parametrize(
    "part",
    [
        *("0,", "[],", "{},", '"",', '"a",', '{"a":0},', '{"token":"x"},', '{"token":[[]]},', '"--key",', "[[[]]],"),
        '{"' + "n" * 300 + '":0},',
    ],
    ids=lambda part: part[:20],
)
@pytest.mark.parametrize(("limit", "most"), [(4 * MAX_SIZE, MAX_STEPS), (4096, 4096), (MIN_LIMIT, MIN_STEPS)])
def test_a_message_of_any_parts_costs_no_more_than_so_many_steps(part: str, limit: int, most: int) -> None:
    walk = redaction._Walk("[" + part * ((MAX_SIZE - 10) // len(part)) + "0]", limit, logs_in=False)
    assert walk._steps == most
    assert " bytes left out" in walk.result() or walk._steps > 0
    assert walk._steps > -1000


def test_a_string_with_an_escape_costs_more_steps_than_one_without() -> None:
    costs = []
    for part in ('"a"', r'"\n"'):
        walk = redaction._Walk(f"[{part}]", LIMIT, logs_in=False)
        before = walk._steps
        walk.result()
        costs.append(before - walk._steps)
    assert costs[0] < costs[1]


@pytest.mark.parametrize(
    "part",
    ["token ", " --a-key ", "Bearer a ", "x-a-key: ", "'akey': ", "cookie: a\n", "?aaa=", "-----BEGIN A "],
    ids=str,
)
def test_a_long_text_is_looked_through_as_far_as_there_are_steps(part: str) -> None:
    text = "api_key " + part * (MAX_SIZE // len(part) // 2)
    shown = json.loads(redact(json.dumps([text, "acpgw_hunter2", "end"]).encode(), 4 * MAX_SIZE))
    assert "characters left out" in shown[0]
    assert "hunter2" not in str(shown)


def test_the_largest_message_is_looked_through_and_a_larger_one_is_told_by_method_and_size() -> None:
    message = b'{"jsonrpc":"2.0","method":"session/update","params":{"a":"%b"}}'
    largest = message % (b"x" * (MAX_SIZE - len(message) + 2))
    assert len(largest) == MAX_SIZE
    assert redact(largest, 2 * MAX_SIZE) == largest
    more = message % (b"x" * MAX_SIZE)
    assert redact_json(more, LIMIT) is None
    assert redact(more, LIMIT) == b'"%d bytes of session/update, more than record_message_size"' % len(more)
    assert b"hunter2" not in redact(b'{"method":"acpgw_hunter2","a":"' + b"x" * MAX_SIZE + b'"}', LIMIT)


FILLERS = [
    "[]," * 3000,
    "0," * 9000,
    '"api_key= token bearer ",' * 3000,
    '{"token":[' + "[]," * 4000 + "0]},",
    '"' + "?token" * 9000 + '",',
]


@pytest.mark.parametrize("filler", FILLERS, ids=lambda filler: filler[:12])
@pytest.mark.parametrize("limit", [4096, 4 * MAX_SIZE])
@pytest.mark.parametrize(
    "secret",
    [
        r'{"pass\u0077ord":"hunter2"}',
        r'{"\u0061pi\u005fkey":{"a":["hunter2"]}}',
        r'"\u0061cpgw_hunter2"',
        '["--token","hunter2"]',
        r'{"env":[{"name":"A","value":"hunter2"}],"\ud800":"acpgw_hunter2"}',
        '"' + "a" * 20_000 + ' sk-hunter2hunter2hunter2"',
    ],
    ids=lambda secret: secret[:20],
)
def test_no_secret_comes_through_where_there_are_no_steps_left_for_it(filler: str, limit: int, secret: str) -> None:
    for text in (f"[{filler}{secret}]", f"[{secret},{filler}0]", f'{{"a":{secret},"b":[{filler}{secret}]}}'):
        result = redact(text.encode(), limit)
        assert b"hunter2" not in result
        json.loads(result)


# Against a reference that is slow and simple: all of a message parsed, and all patterns tried everywhere


def plain(text: str) -> str:
    for _, pattern in SHAPES:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def reference(value: Any, name: str = "", within: str = "") -> Any:
    """The value without secrets, objects as pairs."""
    folded = "".join(c for c in name.casefold() if c not in " _-.").rstrip("0123456789")
    secret = name and is_secret_name(folded)
    values = folded in redaction._ENVIRONMENTS or folded.endswith("headers")
    if isinstance(value, Pairs):
        if secret or (within and within != "entries"):
            return HIDDEN
        inner = "values" if values else "entry" if within == "entries" else ""
        return Pairs((plain(key), reference(each, key, inner)) for key, each in value)
    if isinstance(value, list):
        if secret or within:
            return HIDDEN
        if values:
            return [reference(each, "", "entries") for each in value]
        hidden = [False, *(isinstance(each, str) and OPTION.fullmatch(each) is not None for each in value)]
        return [
            HIDDEN if hide and isinstance(each, str | int) and not isinstance(each, bool) else reference(each)
            for hide, each in zip(hidden, value, strict=False)
        ]
    if value is None or isinstance(value, bool):
        return value
    if within in ("values", "entries") or (
        within == "entry" and not (isinstance(value, str) and folded in ("name", "key"))
    ):
        return HIDDEN
    if not within and (values or (secret and (folded != "tokens" or isinstance(value, str)))):
        return HIDDEN
    return plain(value) if isinstance(value, str) else value


class Pairs(list[tuple[str, Any]]):
    """An object with its members as they came."""


NAMES = st.sampled_from(
    ["a", "token", "Api Key", "PASSWORD_1", "tokens", "env", "http_headers", "name", "key", "compass", "value", "pwd"]
)
TEXTS = st.sampled_from(
    [
        "x",
        "--token",
        "-secret",
        "Bearer hunter2hunter2",
        "A_TOKEN=b c",
        "https://u:p@h/?sig=x",
        "cookie: a",
        "ghp_" + "a" * 20,
    ]
)
MESSAGES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS | st.text(max_size=8),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(NAMES | TEXTS, values, max_size=5),
    max_leaves=25,
)


@given(MESSAGES, st.booleans())
def test_the_result_is_that_of_the_reference(message: Any, ascii_only: bool) -> None:
    text = json.dumps(message, ensure_ascii=ascii_only)
    result = redact(text.encode(errors="surrogatepass"), 4 * MAX_SIZE)
    if b"not JSON" not in result:
        assert json.loads(result, object_pairs_hook=Pairs) == reference(json.loads(text, object_pairs_hook=Pairs))
