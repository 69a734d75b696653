"""Secrets in a text: each known shape is hidden, and the rest stays."""

import json

import pytest

from acp_gateway.protocol.redaction import redact
from acp_gateway.protocol.secret_patterns import HIDDEN, redact_text

LIMIT = 1_000_000
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("with acpgw_0aZ9, acpgwo_abc and acpgwg_1", f"with acpgw_{HIDDEN}, acpgwo_{HIDDEN} and acpgwg_{HIDDEN}"),
        ("acp.v1, acp.bearer.acpgw_abc", f"acp.v1, acp.bearer.acpgw_{HIDDEN}"),
        ("a Bearer xyz b", f"a Bearer {HIDDEN} b"),
        ("bearer 0123456789abcdef=", f"bearer {HIDDEN}"),
        ("curl -H 'Authorization: Basic YTpi' x", f"curl -H 'Authorization: {HIDDEN}' x"),
        ("Set-Cookie: a=b; c\nnext", f"Set-Cookie: {HIDDEN}\nnext"),
        ("key sk-ant-api03-abcdefgh_1234567, then", f"key {HIDDEN}, then"),
        ("ghp_0123456789abcdefABCDEF", HIDDEN),
        ("\x1b[1mghp_0123456789abcdefABCDEF \x1b[0m", f"\x1b[1m{HIDDEN} \x1b[0m"),
        ("\x1b[1;38;5;120mPASSWORD=hunter2 \x1b[m", f"\x1b[1;38;5;120mPASSWORD={HIDDEN} \x1b[m"),
        ("\x1b[mx-api-key: hunter2", f"\x1b[mx-api-key: {HIDDEN}"),
        ("github_pat_0123456789_abcdefABCDEF", HIDDEN),
        ("glpat-0123456789abcdef", HIDDEN),
        ("AKIAIOSFODNN7EXAMPLE and ASIAIOSFODNN7EXAMPLE", f"{HIDDEN} and {HIDDEN}"),
        ("AIzaSyA-0123456789abcdefghijklmnopqrstu", HIDDEN),
        ("xoxb-123456789012-abc", HIDDEN),
        ("hf_abcdefghijklmnopqrstuvwx npm_abcdefghijklmnopqrstuvwx", f"{HIDDEN} {HIDDEN}"),
        ("a eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_ b", f"a {HIDDEN} b"),
        (f"first\n{KEY}-----END OPENSSH PRIVATE KEY-----\nlast", f"first\n{HIDDEN}\nlast"),
        (f"first\n{KEY}torn off", f"first\n{HIDDEN}"),
        ("git clone https://ann:hunter2@host/x", f"git clone https://ann:{HIDDEN}@host/x"),
        ("https://h/?a=1&access_token=x&b=2#c", f"https://h/?a=1&access_token={HIDDEN}&b=2#c"),
        ("--api-key=hunter2", f"--api-key={HIDDEN}"),
        ("https://h/cb#access_token=x&b=2", f"https://h/cb#access_token={HIDDEN}&b=2"),
        (
            "https://h/?key=x&sig=y%3D&X-Amz-Signature=z",
            f"https://h/?key={HIDDEN}&sig={HIDDEN}&X-Amz-Signature={HIDDEN}",
        ),
        ("gh --token=hunter2 x", f"gh --token={HIDDEN} x"),
        ("gh --token hunter2222 x", f"gh --token {HIDDEN} x"),
        ("gh --auth-token 'hunter2222' x", f"gh --auth-token '{HIDDEN}' x"),
        ("curl -H 'X-Api-Key: hunter2' x", f"curl -H 'X-Api-Key: {HIDDEN}' x"),
        ("A=1\nOPENAI_API_KEY=hunter2\nB=2", f"A=1\nOPENAI_API_KEY={HIDDEN}\nB=2"),
        ("PASSWORD_1=hunter2 DB_PASS=hunter2 DB_PWD=x", f"PASSWORD_1={HIDDEN} DB_PASS={HIDDEN} DB_PWD={HIDDEN}"),
        ("PRIVATE_KEY_PEM=hunter2", f"PRIVATE_KEY_PEM={HIDDEN}"),
        ("mysql --pass=hunter2 --pwd=hunter2", f"mysql --pass={HIDDEN} --pwd={HIDDEN}"),
        ("{'Api Key': 'hunter2', 'pwd': 'hunter2'}", f"{{'Api Key': '{HIDDEN}', 'pwd': '{HIDDEN}'}}"),
        ('read {"db_password": "hunter2", "x": "y"}', f'read {{"db_password": "{HIDDEN}", "x": "y"}}'),
        (r'{"token": "a\"b", "x": "y"}', f'{{"token": "{HIDDEN}", "x": "y"}}'),
        (r"{\"token\":\"hunter2\",\"x\":1}", rf"{{\"token\":\"{HIDDEN}\",\"x\":1}}"),
        ("{'pass': \"it's me\", 'x': 1}", f"{{'pass': \"{HIDDEN}\", 'x': 1}}"),
        ("db_password: hunter2\nx: y", f"db_password: {HIDDEN}\nx: y"),
        ("aws_secret_access_key = wJalrXU/K7MDENG+bPx=", f"aws_secret_access_key = {HIDDEN}"),
        ("Server=x;Password=hunter2;User=sa", f"Server=x;Password={HIDDEN};User=sa"),
        ("AccountName=a;AccountKey=aB3d+/==;x", f"AccountName=a;AccountKey={HIDDEN};x"),
        ("no login, apiKey='hunter2'", f"no login, apiKey='{HIDDEN}'"),
        ("export A_TOKEN=\"a b c\" B_KEY='d e'", f"export A_TOKEN={HIDDEN} B_KEY={HIDDEN}"),
        ("https://gho1234567890abcdef@github.com/a", f"https://{HIDDEN}@github.com/a"),
        ("sk_live_0123456789abcdef rk_test_0123456789abcdef", f"{HIDDEN} {HIDDEN}"),
        ("gsk_abcdefghijklmnopqrstuvwx xai-abcdefghijklmnopqrstuvwx", f"{HIDDEN} {HIDDEN}"),
        ("pypi-AgEIcHlwaS5vcmcCJ ya29.a0AfH6SMBabcdefgh", f"{HIDDEN} {HIDDEN}"),
        ("# AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQ", f"# {HIDDEN}"),
    ],
)
def test_what_looks_like_a_secret_goes_wherever_it_stands(text: str, kept: str) -> None:
    message = json.dumps({"text": text, text: [text]}).encode()
    assert json.loads(redact(message, LIMIT)) == {"text": kept, kept: [kept]}
    assert redact_text(text, LIMIT) == kept


def test_a_text_that_is_not_json_is_cut_as_well() -> None:
    assert redact_text("x" * 50, 20) == "x" * 20 + f"{HIDDEN} 30 characters left out"
