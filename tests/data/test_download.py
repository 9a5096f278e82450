import hashlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from vbmem.data.download import Archive, fetch
from vbmem.errors import DataError

CONTENTS = b"the official bytes" * 1000
MD5 = hashlib.md5(CONTENTS).hexdigest()


@pytest.fixture
def server():
    """The address of a local web server that answers every request with CONTENTS."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENTS)))
            self.end_headers()
            self.wfile.write(CONTENTS)

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize("progress", [True, False])
def test_an_archive_is_downloaded_once(server, tmp_path, progress, capsys, request):
    archive = Archive(f"{server}/a.bin", MD5, "some/a.bin")
    path = fetch(archive, tmp_path, progress)
    assert path == tmp_path / "some" / "a.bin"
    assert path.read_bytes() == CONTENTS
    assert ("kB" in capsys.readouterr().err) == progress
    request.getfixturevalue("no_network")
    assert fetch(archive, tmp_path, progress) == path


def test_no_network_says_where_to_put_which_file(no_network, tmp_path):
    archive = Archive("https://example.org/a.bin", MD5, "some/a.bin")
    with pytest.raises(DataError) as caught:
        fetch(archive, tmp_path, progress=True)
    for part in (archive.url, str(tmp_path / "some" / "a.bin"), "data_dir", "VBMEM_DATA"):
        assert part in str(caught.value)
    assert not list(tmp_path.rglob("*.bin"))


def test_a_download_with_another_checksum_is_not_kept(server, tmp_path):
    with pytest.raises(DataError, match="no longer has the md5 0000"):
        fetch(Archive(f"{server}/a.bin", "0" * 32, "a.bin"), tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named_and_left_alone(no_network, tmp_path):
    (tmp_path / "a.bin").write_bytes(CONTENTS[:-1])
    with pytest.raises(DataError, match=r"a\.bin is damaged .* md5 is .* delete it"):
        fetch(Archive("https://example.org/a.bin", MD5, "a.bin"), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == CONTENTS[:-1]
