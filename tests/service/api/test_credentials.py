"""Check the stored data of a token, the validity of tokens, and the errors for broken credentials."""

import hmac
from datetime import UTC, datetime, timedelta

from support.each import each
from support.sealed import reseal

from theodolite.api.credentials import (
    create_credential,
    damaged_credentials,
    find_credential,
    had_credentials,
    list_credentials,
    revoke_credential,
)


def stored(folder):
    return [path.read_text() for path in sorted((folder / "tokens").iterdir())]


def test_the_store_does_not_contain_the_token(tmp_path):
    token, record = create_credential(str(tmp_path), ["read"], "for <me>", days=2)
    content = "".join(stored(tmp_path))
    assert token not in content
    secret = token.rsplit("_", 1)[-1] if "_" not in token.split("_", 2)[2] else token.split("_", 2)[2]
    assert secret not in content
    assert len(secret) >= 43  # 256 bits
    assert token.split("_", 2)[:2] == ["theodolite", record.id]
    assert list_credentials(str(tmp_path)) == [record]
    assert (record.label, record.scopes) == ("for <me>", ("read",))
    expires = datetime.fromisoformat(record.expires)
    assert abs(expires - datetime.now(UTC) - timedelta(days=2)) < timedelta(minutes=1)


def test_a_store_remembers_that_it_had_a_token(tmp_path):
    assert not had_credentials(str(tmp_path))
    _, record = create_credential(str(tmp_path), ["read"])
    revoke_credential(str(tmp_path), record.id)
    assert list_credentials(str(tmp_path)) == []
    assert had_credentials(str(tmp_path))


def test_tokens_are_unique(tmp_path):
    made = [create_credential(str(tmp_path), ["read", "submit"]) for _ in range(20)]
    assert len({token for token, _ in made}) == len({record.id for _, record in made}) == 20
    records = list_credentials(str(tmp_path))
    for token, record in made:
        assert find_credential(records, token) == record


def test_only_the_exact_token_matches(tmp_path):
    token, record = create_credential(str(tmp_path), ["read"])
    others = [
        token[:-1],
        token + "x",
        token.upper(),
        f" {token}",
        record.id,
        record.token_sha256,
        "",
        "é",
        "\x00",
        "💩",
    ]
    assert all(find_credential([record], other) is None for other in others)


def test_every_record_is_compared_in_constant_time(tmp_path, monkeypatch):
    made = [create_credential(str(tmp_path), ["read"]) for _ in range(5)]
    compared = []
    plain = hmac.compare_digest

    def counting(one, other):
        compared.append((one, other))
        return plain(one, other)

    monkeypatch.setattr("theodolite.api.credentials.hmac.compare_digest", counting)
    records = [record for _, record in made]
    for token in (made[0][0], made[4][0], "nobody"):
        compared.clear()
        find_credential(records, token)
        assert len(compared) == 5  # for every token, also an unknown one
        assert all(len(one) == len(other) == 64 and token not in (one, other) for one, other in compared)


def test_revoking_returns_whether_the_credential_existed(tmp_path):
    _, first = create_credential(str(tmp_path), ["read"])
    _, second = create_credential(str(tmp_path), ["submit"])
    assert revoke_credential(str(tmp_path), first.id)
    assert list_credentials(str(tmp_path)) == [second]
    assert not revoke_credential(str(tmp_path), first.id)
    assert not revoke_credential(str(tmp_path), "nobody")
    assert revoke_credential(str(tmp_path), second.id)
    assert list_credentials(str(tmp_path)) == []


@each("token_id", ["../jobs/secret", "../../outside", "", "/etc/passwd", "a\x00"])
def test_no_id_deletes_an_object_that_is_not_a_credential(tmp_path, token_id):
    create_credential(str(tmp_path / "store"), ["read"])
    (tmp_path / "outside.json").write_text("{}")
    (tmp_path / "store" / "jobs").mkdir()
    (tmp_path / "store" / "jobs" / "secret.json").write_text("{}")
    assert not revoke_credential(str(tmp_path / "store"), token_id)
    assert (tmp_path / "outside.json").exists()
    assert (tmp_path / "store" / "jobs" / "secret.json").exists()
    assert len(list_credentials(str(tmp_path / "store"))) == 1


def test_a_missing_store_has_no_credentials(tmp_path):
    assert list_credentials(str(tmp_path / "nowhere")) == []
    assert not revoke_credential(str(tmp_path / "nowhere"), "x")
    assert not (tmp_path / "nowhere").exists()


def test_a_token_is_valid_until_it_expires(tmp_path):
    _, forever = create_credential(str(tmp_path), ["read"])
    _, over = create_credential(str(tmp_path), ["read"], days=0)
    _, still = create_credential(str(tmp_path), ["read"], days=1)
    assert [one.is_expired() for one in (forever, over, still)] == [False, True, False]


def damaged(folder, content):
    """Return what the store lists beside a damaged credential: the credentials, and the keys of damaged ones."""
    (folder / "tokens" / "0123456789ab.json").write_bytes(content)
    return list_credentials(str(folder)), damaged_credentials(str(folder))


@each(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"{}", b'{"scopes": 1}', b'{"id": "x", "scopes": []}', b"\xff\xfe", b"[" * 9_000),
        b"{" * 2_000_000,
    ],
)
def test_a_damaged_credential_locks_out_only_itself(tmp_path, content):
    _, record = create_credential(str(tmp_path), ["read"])
    assert damaged(tmp_path, content) == ([record], ["tokens/0123456789ab.json"])


@each(
    "change",
    [
        {"expires": "soon"},
        {"expires": "2030-01-01T00:00:00"},
        {"token_sha256": "é"},
        {"token_sha256": 1},
        {"token_sha256": "00"},
        {"scopes": ["all"]},
        {"scopes": "read"},
        {"label": {"deep": [1]}},
        {"id": 7},
        {"created": None},
    ],
)
def test_a_credential_with_an_impossible_field_is_damaged(tmp_path, change):
    _, record = create_credential(str(tmp_path), ["read"])
    file = tmp_path / "tokens" / f"{record.id}.json"
    reseal(file, **change)
    assert list_credentials(str(tmp_path)) == []
    assert damaged_credentials(str(tmp_path)) == [f"tokens/{record.id}.json"]


def test_a_copy_of_a_credential_does_not_survive_its_revocation(tmp_path):
    token, record = create_credential(str(tmp_path), ["admin"])
    folder = tmp_path / "tokens"
    for name in ("0123456789ab.json", "backup.json"):
        (folder / name).write_bytes((folder / f"{record.id}.json").read_bytes())
    assert find_credential(list_credentials(str(tmp_path)), token) == record
    revoke_credential(str(tmp_path), record.id)
    assert list_credentials(str(tmp_path)) == []
    assert damaged_credentials(str(tmp_path)) == ["tokens/0123456789ab.json", "tokens/backup.json"]
    assert had_credentials(str(tmp_path))
