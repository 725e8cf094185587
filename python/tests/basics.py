"""What needs no package but the standard library's: part of `make test`. Everything else needs pytest."""
import pathlib
import tempfile

import test_header
import tiny

tiny.use_build()


def main():
    import vitrum

    for name, test in vars(test_header).items():
        if name.startswith("test_"):
            test()
    with tempfile.TemporaryDirectory() as folder:
        photo = pathlib.Path(folder) / "a.png"
        photo.write_bytes(tiny.png(tiny.pixels()))
        model = vitrum.load(tiny.write_model(pathlib.Path(folder) / "model"))
        best = model.predict(photo)
        assert len(best) == 5 and best[0].label in tiny.LABELS, best
        assert model.predict([photo.read_bytes(), str(photo)]) == [best, best]
        assert len(model.embed(photo)) == tiny.WIDTH
        try:
            model.predict("nowhere.jpg")
        except vitrum.InputError as error:
            assert "nowhere.jpg" in str(error)
        else:
            raise AssertionError("a photo that is not there")
    print("the basics work")


if __name__ == "__main__":
    main()
