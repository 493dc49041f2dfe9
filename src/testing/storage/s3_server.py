"""An S3 service in memory that fails as real ones do, by the rules in ./rules.json, which is read for each request.

usage: s3_server.py PORT [CERTIFICATE KEY]

A rule is an object: {"verb": "PUT", "every": 11, "status": 503, "code": "SlowDown"}. The first that applies answers:
  verb, path       of the requests it is about; none: all. path: a part of it
  unless           a text; requests with it in their Authorization or Host are not meant
  every            each so many-th of them; 1 if it is missing
  status, code, xml, body, headers   the answer
  reset            true: the connection is closed instead; "half": after half of a right answer
Every bucket is there. A request is logged in ./requests.log: verb, path, status.
"""
import json
import socket
import ssl
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

OBJECTS, COUNTS, LOCK = {}, {}, threading.Lock()


def read_rules():
    try:
        with open("rules.json", encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def rule(self):
        signed = self.headers.get("Authorization", "") + " " + self.headers.get("Host", "")
        for rule in read_rules():
            if rule.get("verb", self.command) != self.command or rule.get("path", "") not in self.path:
                continue
            if "unless" in rule and rule["unless"] in signed:
                continue
            key = json.dumps(rule)
            COUNTS[key] = COUNTS.get(key, 0) + 1
            if COUNTS[key] % rule.get("every", 1) == 0:
                return rule
        return None

    def hang_up(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def send(self, status, body=b"", headers=(), half=False):
        with LOCK, open("requests.log", "a", encoding="utf-8") as log:
            log.write(f"{self.command} {self.path} {status}\n")
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:len(body) // 2] if half else body)
        if half:
            self.wfile.flush()
            self.hang_up()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with LOCK:
            rule = self.rule()
        if rule and rule.get("reset") is True:
            return self.hang_up()
        if rule and "status" in rule:
            code = rule.get("code", "")
            xml = f"<Error><Code>{code}</Code>{rule.get('xml', '')}</Error>" if code else rule.get("body", "")
            return self.send(rule["status"], xml.encode(), rule.get("headers", {}).items())
        url = urlsplit(self.path)
        # The bucket is in the path or in the host's name.
        name = unquote(url.path.lstrip("/"))
        if "bucket." not in self.headers.get("Host", ""):
            name = name.partition("/")[2]
        return getattr(self, "on_" + self.command)(name, parse_qs(url.query), body, bool(rule))

    def on_PUT(self, name, _query, body, half):
        with LOCK:
            is_there = name in OBJECTS
            if not (is_there and self.headers.get("If-None-Match") == "*"):
                OBJECTS[name] = body
                is_there = False
        self.send(412 if is_there else 200, half=half)

    def on_DELETE(self, name, _query, _body, half):
        with LOCK:
            OBJECTS.pop(name, None)
        self.send(204, half=half)

    def on_GET(self, name, query, _body, half):
        if "list-type" in query:
            return self.list(query, half)
        with LOCK:
            value = OBJECTS.get(name)
        if value is None:
            return self.send(404, b"<Error><Code>NoSuchKey</Code></Error>", half=half)
        range_ = self.headers.get("Range")
        if not range_:
            return self.send(200, value, half=half)
        first, last = range_.removeprefix("bytes=").split("-")
        return self.send(206, value[int(first):int(last) + 1], half=half)

    on_HEAD = on_GET

    def list(self, query, half):
        prefix = query.get("prefix", [""])[0]
        most, after = int(query["max-keys"][0]), query.get("continuation-token", [""])[0]
        with LOCK:
            names = sorted(name for name in OBJECTS if name.startswith(prefix) and name > after)
        page = names[:most]
        xml = "".join(f"<Contents><Key>{escape(name)}</Key></Contents>" for name in page)
        if len(names) > most:
            xml += f"<IsTruncated>true</IsTruncated><NextContinuationToken>{page[-1]}</NextContinuationToken>"
        return self.send(200, f"<ListBucketResult>{xml}</ListBucketResult>".encode(), half=half)

    do_GET = do_HEAD = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
