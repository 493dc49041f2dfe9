"""Servers on two machines: network namespaces, joined by a link that a test can break."""

import contextlib
import socket
import sys
import threading

from processes import HERE
from servers import Place

sys.path.insert(0, str(HERE.parent / "transfer"))
from netns_link import NetnsLink, Unsupported  # noqa: E402, F401


class Side(Place):
    """One of the two machines. The test reaches its servers through a relay, as it is on neither."""

    def __init__(self, link, side):
        self.host, self._link, self.side = link.address(side), link, side

    def command(self, command):
        return self._link.command(self.side, *command)

    def url(self, port):
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def _accept(self, listener, port):
        while True:
            client, _ = listener.accept()
            # A thread enters the namespace for a moment, so it is none that others use.
            threading.Thread(target=self._relay, args=(client, port), daemon=True).start()

    def _relay(self, client, port):
        with client, contextlib.suppress(OSError), self._link.socket(self.side) as server:
            server.connect((self.host, port))
            back = threading.Thread(target=self._carry, args=(server, client), daemon=True)
            back.start()
            self._carry(client, server)
            back.join()

    @staticmethod
    def _carry(source, target):
        with contextlib.suppress(OSError):
            while some := source.recv(1 << 16):
                target.sendall(some)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
