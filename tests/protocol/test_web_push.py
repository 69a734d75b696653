"""The encryption of push messages and the proof of their sender, against the RFCs and a receiver written from them."""

import pytest

from acp_gateway.gateway.push.deciding import PAYLOAD_SIZE
from acp_gateway.protocol import web_push
from tests.kit.push_service import Receiver, plain, url_safe, verify

# RFC 8291, appendix A.
PLAINTEXT = b"When I grow up, I want to be a watermelon"
SENDER = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
RECEIVER = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
RECEIVER_PRIVATE = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
SALT = "DGv6ra1nlYgDCS1FRnbzlw"
MESSAGE = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl"
    "7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)


def test_encrypt_makes_the_message_of_rfc_8291() -> None:
    subscriber, auth = web_push.read_subscriber(RECEIVER, AUTH)
    made = web_push.encrypt(PLAINTEXT, subscriber, auth, web_push.read_key(SENDER), plain(SALT))
    assert url_safe(made) == MESSAGE


def test_the_receiver_of_the_tests_reads_the_message_of_rfc_8291() -> None:
    receiver = Receiver(private=int.from_bytes(plain(RECEIVER_PRIVATE), "big"), auth=plain(AUTH))
    assert receiver.members["p256dh"] == RECEIVER
    assert receiver.decrypt(plain(MESSAGE)) == PLAINTEXT


def test_the_largest_payload_fits_the_message_that_push_services_take() -> None:
    receiver = Receiver()
    members = receiver.members
    payload = b"x" * PAYLOAD_SIZE
    body = web_push.encrypt_once(payload, members["p256dh"], members["auth"], b"s" * web_push.SALT_SIZE)
    assert len(body) <= 4096
    assert receiver.decrypt(body) == payload


def test_each_message_has_a_key_of_its_own() -> None:
    members = Receiver().members
    assert len({web_push.encrypt_once(b"a", members["p256dh"], members["auth"], b"s" * 16) for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("p256dh", "auth"),
    [
        ("", AUTH),
        ("BAAA", AUTH),
        (url_safe(b"\x04" + b"\x01" * 64), AUTH),
        (RECEIVER + "é", AUTH),
        (RECEIVER, ""),
        (RECEIVER, AUTH[:-3]),
        (RECEIVER, "*" * 22),
        (RECEIVER, "A"),
    ],
)
def test_keys_that_no_browser_makes_are_refused(p256dh: str, auth: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        web_push.read_subscriber(p256dh, auth)


def test_the_authorization_is_signed_for_one_push_service() -> None:
    key = web_push.read_key(web_push.new_key())
    claims, public = verify(web_push.authorization(key, "https://push.example", "https://box.example/", 1_900_000_000))
    assert claims == {"aud": "https://push.example", "exp": 1_900_000_000, "sub": "https://box.example/"}
    assert public == url_safe(web_push.public_key(key))
    assert len(plain(public)) == 65
