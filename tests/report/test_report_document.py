"""Reports: self-contained, escaped, written whole or not at all."""

import errno
import os
import re

import pytest

from jaxscale.base.errors import InputError
from jaxscale.base.files import check_folder, check_writable
from jaxscale.report import Report, whole_file, write_whole
from jaxscale.report.figures import sensitivity_bars


@pytest.fixture
def report():
    """A report with one block of each kind."""
    report = Report("Title & more")
    report.heading("First <section>")
    report.text("1 < 2 & 3")
    report.table(("name", "value [s]"), [("a|b", 1.5)])
    report.figure("bars", sensitivity_bars({"x": 1.0}), "Bars of x.")
    return report


def test_html_is_self_contained_and_escaped(report):
    html = report.to_html()
    assert "First &lt;section&gt;" in html
    assert "1 &lt; 2 &amp; 3" in html
    sources = re.findall(r'src="([^"]*)"', html)
    assert len(sources) == 1
    assert sources[0].startswith("data:image/png;base64,")
    assert "http" not in html


def test_markdown_points_to_the_images(report):
    text = report.to_markdown()
    assert "![Bars of x.](bars.png)" in text
    assert "| a\\|b | 1.5 |" in text


def test_save_writes_everything(report, tmp_path):
    document = report.save(tmp_path / "new" / "folder")
    assert sorted(path.name for path in document.parent.iterdir()) == ["bars.png", "report.html", "report.md"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "fit.toml"
    write_whole(path, "old")
    with pytest.raises(RuntimeError), whole_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "fit.toml"
    write_whole(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as told:
        write_whole(path, "new")
    assert told.value.filename == str(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_whole_file_replaces_the_old_one_with_ordinary_rights(tmp_path):
    path, other = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("old")
    other.touch()
    write_whole(path, b"new")
    assert path.read_text() == "new"
    assert path.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize("check", [check_writable, check_folder])
def test_what_cannot_be_written_is_refused(tmp_path, check):
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(InputError, match="expected"):
        check(blocked / "below")


def test_a_link_stays_one(tmp_path):
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    assert check_writable(link) == link
    write_whole(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_pipe_is_no_place_for_a_file(tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for write in (check_writable, lambda path: write_whole(path, "new")):
        with pytest.raises(InputError, match="is a device or a pipe"):
            write(pipe)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_folders_and_files_are_told_apart(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        check_writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        check_folder(tmp_path / "file")
    assert check_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
