"""What the connectors take for the identity of a model: its files, wherever the engine has them from."""

import pytest

from cachalot.connectors.access.group import UnsupportedCacheError
from cachalot.connectors.access.identity import config_identity, model_identity


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text('{"rope_theta": 10000}')
    return tmp_path


@pytest.mark.parametrize("load_format", ["dummy", "tensorizer", "remote_instance"])
def test_weights_that_are_not_those_of_the_files_have_no_identity(folder, load_format):
    assert model_identity(str(folder), None, False, "auto").startswith("files:")
    with pytest.raises(UnsupportedCacheError, match=f"load_format {load_format}"):
        model_identity(str(folder), None, False, load_format)


def test_a_configuration_elsewhere_is_told_apart_by_its_content(folder, tmp_path_factory):
    assert config_identity(None, None) == ""
    other = tmp_path_factory.mktemp("config")
    (other / "config.json").write_text('{"rope_theta": 10000}')
    assert config_identity(str(folder), None) == config_identity(str(other), None)
    (other / "config.json").write_text('{"rope_theta": 20000}')
    assert config_identity(str(folder), None) != config_identity(str(other), None)
    with pytest.raises(UnsupportedCacheError, match="hf_config_path: .*gone, which has no files on this machine"):
        config_identity(str(other / "gone"), None)
