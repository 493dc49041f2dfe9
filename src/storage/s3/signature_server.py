"""Answers each request with 200 if botocore computes the signature that the request has, else with 403 and both.

usage: signature_server.py PORT   (the keys are AKIDEXAMPLE and wJalr/EXAMPLE+KEY, the region is eu-west-7)
"""
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

AUTH = S3SigV4Auth(Credentials("AKIDEXAMPLE", "wJalr/EXAMPLE+KEY"), "s3", "eu-west-7")
MUST_BE_SIGNED = {"host", "x-amz-date", "x-amz-content-sha256"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        got = self.headers.get("Authorization", "")
        fields = dict(part.strip().split("=", 1) for part in got.partition(" ")[2].split(",") if "=" in part)
        signed = fields.get("SignedHeaders", "").split(";")
        request = AWSRequest(self.command, f"http://{self.headers['Host']}{self.path}",
                             headers={name: self.headers[name] for name in signed if name in self.headers})
        request.context["timestamp"] = self.headers.get("X-Amz-Date", "")
        canonical = AUTH.canonical_request(request)
        expected = AUTH.signature(AUTH.string_to_sign(request, canonical), request)
        is_same = fields.get("Signature") == expected and MUST_BE_SIGNED <= set(signed)
        body = b"" if is_same else f"<Code>{got}\nexpected {expected} of\n{canonical}</Code>".encode()
        self.send_response(200 if is_same else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
