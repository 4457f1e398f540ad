"""Files behind http://, from a server of the test's own that answers ranges."""

import http.server
import re
import threading
from pathlib import Path

import pytest

from maxtrain.core import files


class _Ranges(http.server.BaseHTTPRequestHandler):
    """Serves one object, by ranges."""

    body = bytes(range(256)) * 40

    def do_GET(self):
        if self.path != "/data/x":
            self.send_error(404)
            return
        size = len(self.body)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(asked[1]), min(int(asked[2] or size), size - 1)) if asked else (0, size - 1)
        if first >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(self.body[first : last + 1])

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Ranges)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/data"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_web_file_is_read_by_ranges(address):
    assert files.is_remote(f"{address}/x")
    assert files.remote_size(f"{address}/x") == len(_Ranges.body)
    assert files.read_ranges(f"{address}/x", [(5, 3), (300, 10)]) == [_Ranges.body[5:8], _Ranges.body[300:310]]
    whole = b"".join(files.iterate_chunks(f"{address}/x", len(_Ranges.body), 1000))
    assert whole == _Ranges.body
    with pytest.raises(EOFError):
        files.read_range(f"{address}/x", len(_Ranges.body) - 1, 2)
    with pytest.raises(FileNotFoundError):
        files.remote_size(f"{address}/none")
    assert Path(files.join(address, "a", "b")).name == "b"
