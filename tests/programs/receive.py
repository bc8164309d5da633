"""An HTTP server that takes PUT and answers with the BLAKE2b of the body, and GET of its folder."""
import hashlib
import http.server
import os
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        digest, left = hashlib.blake2b(), int(self.headers["Content-Length"])
        while left:
            data = self.rfile.read(min(left, 1 << 20))
            if not data:
                break
            digest.update(data)
            left -= len(data)
        body = digest.hexdigest().encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


os.chdir(sys.argv[2])
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
