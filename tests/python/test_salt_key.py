"""The salt out of a key file, which separates tenants."""

import pytest

import cachalot
from cachalot.connectors.access.options import PoolOptions, parse_pool


def salt_of(path, **more):
    return parse_pool("flag", {"pool": "/dev/shm/kv", "salt_key_file": str(path), **more}, PoolOptions)["salt"]


def key_file(folder, name, content, mode=0o600):
    path = folder / name
    path.touch(mode)
    path.write_bytes(content)
    return path


def test_tenants_with_other_keys_have_other_salts_and_the_key_is_not_in_them(tmp_path):
    one, other = key_file(tmp_path, "one", b"1" * 32), key_file(tmp_path, "other", b"2" * 32)
    assert salt_of(one) == salt_of(key_file(tmp_path, "hex", (b"1" * 32).hex().encode() + b"\n"))
    assert salt_of(one) != salt_of(other)
    assert salt_of(one, salt="a") != salt_of(one, salt="b")
    assert (b"1" * 32).hex() not in salt_of(one) and "1" * 32 not in salt_of(one)


def test_what_is_no_secret_is_an_error_that_names_the_file(tmp_path):
    for name, content, mode, expected in (("short", b"x", 0o600, "expected 32 bytes"),
                                          ("open", b"1" * 32, 0o644, "other users may read it"),
                                          ("digits", b"z" * 64, 0o600, "expected 32 bytes")):
        path = key_file(tmp_path, name, content)
        path.chmod(mode)
        with pytest.raises(cachalot.InvalidArgumentError, match=expected) as error:
            salt_of(path)
        assert str(path) in str(error.value)
    with pytest.raises(cachalot.InvalidArgumentError, match="No such file"):
        salt_of(tmp_path / "absent")
