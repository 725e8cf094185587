import pytest
import tiny

tiny.use_build()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return tiny.write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def headless_dir(tmp_path_factory):
    return tiny.write_model(tmp_path_factory.mktemp("models") / "headless", head=False)


@pytest.fixture(scope="session")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos") / "a.png"
    path.write_bytes(tiny.png(tiny.pixels()))
    return path


@pytest.fixture(scope="session")
def model(model_dir):
    import vitrum

    return vitrum.load(model_dir)
