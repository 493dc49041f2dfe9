#include "storage/redis/tls.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace cachalot::storage {
namespace {

// --- A socket as OpenSSL's stream ------------------------------------------------------------------

int fd_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}
bool is_later(int error) {
  return error == EAGAIN || error == EINPROGRESS || error == ENOTCONN || error == EINTR;
}
int write_socket(BIO* bio, const char* from, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent =
      ::send(fd_of(bio), from, static_cast<std::size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && is_later(errno)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}
int read_socket(BIO* bio, char* to, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(fd_of(bio), to, static_cast<std::size_t>(bytes), MSG_DONTWAIT);
  if (got < 0 && is_later(errno)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}
long control_socket(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// One for the process; OpenSSL keeps no count of them.
const BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write(made, write_socket);
    BIO_meth_set_read(made, read_socket);
    BIO_meth_set_ctrl(made, control_socket);
    return made;
  }();
  return method;
}

// --- Errors ----------------------------------------------------------------------------------------

std::string last_reason() {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error" : reason;
}

// The other side does not accept our certificate, or misses one.
bool is_refusal(int reason) {
  constexpr int kReasons[] = {
      SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE,   SSL_R_SSLV3_ALERT_BAD_CERTIFICATE,
      SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED, SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED,
      SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN, SSL_R_TLSV1_ALERT_UNKNOWN_CA,
      SSL_R_TLSV1_ALERT_ACCESS_DENIED,       SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED};
  return std::find(std::begin(kReasons), std::end(kReasons), reason) != std::end(kReasons);
}

Error file_error(const char* what, const std::string& path) {
  return Error::make(Code::kInvalidArgument, "TLS: %s file \"%.120s\": %.80s; expected PEM", what,
                     path.c_str(), last_reason().c_str());
}

}  // namespace

// --- The stream ------------------------------------------------------------------------------------

TlsStream::~TlsStream() {
  SSL_free(ssl_);
}

Error TlsStream::error_of(int result) const {
  const int os_error = errno;
  const char* const host = host_.c_str();
  const long verified = SSL_get_verify_result(ssl_);
  if (verified != X509_V_OK) {
    return Error::make(Code::kPermission, "TLS with %.80s: its certificate: %.100s", host,
                       X509_verify_cert_error_string(verified));
  }
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const bool is_end =
      result == SSL_ERROR_ZERO_RETURN || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  if (is_end || (result == SSL_ERROR_SYSCALL && ERR_peek_last_error() == 0)) {
    return Error::from_errno(is_end || os_error == 0 ? ECONNRESET : os_error, "TLS with %.80s",
                             host);
  }
  Code code = is_refusal(reason) ? Code::kPermission : Code::kIo;
  if (reason == SSL_R_WRONG_VERSION_NUMBER) code = Code::kUnsupported;
  return Error::make(code, "TLS with %.80s: %.100s%s", host, last_reason().c_str(),
                     code == Code::kUnsupported  ? ": the server does not speak TLS there"
                     : code == Code::kPermission ? ": the server refuses this client's certificate"
                                                 : "");
}

Result<std::size_t> TlsStream::write(std::span<const iovec> pieces) {
  std::size_t written = 0, filled = 0;
  for (const iovec& piece : pieces) {
    const std::size_t some = std::min(piece.iov_len, record_.size() - filled);
    std::memcpy(record_.data() + filled, piece.iov_base, some);
    filled += some;
  }
  ERR_clear_error();
  errno = 0;
  const int done = SSL_write_ex(ssl_, record_.data(), filled, &written);
  const int result = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_, done);
  write_waits_for_read_ = result == SSL_ERROR_WANT_READ;
  if (result == SSL_ERROR_WANT_READ || result == SSL_ERROR_WANT_WRITE) return std::size_t{0};
  if (result != SSL_ERROR_NONE) return error_of(result);
  return written;
}

// Records until there are no more, or no room for one.
Result<std::size_t> TlsStream::read(std::span<char> room) {
  std::size_t all = 0;
  while (room.size() - all >= kRecordBytes) {
    ERR_clear_error();
    errno = 0;
    std::size_t got = 0;
    const int done = SSL_read_ex(ssl_, room.data() + all, room.size() - all, &got);
    const int result = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_, done);
    read_waits_for_write_ = result == SSL_ERROR_WANT_WRITE;
    if (result == SSL_ERROR_NONE) {
      all += got;
    } else if (result == SSL_ERROR_WANT_READ || result == SSL_ERROR_WANT_WRITE || all != 0) {
      break;  // an error comes again
    } else {
      return error_of(result);
    }
  }
  return all;
}

bool TlsStream::is_open() const {
  return SSL_is_init_finished(ssl_) == 1;
}

short TlsStream::events(bool wants_to_write) const {
  const bool writes = (wants_to_write && !write_waits_for_read_) || read_waits_for_write_;
  return static_cast<short>(POLLIN | (writes ? POLLOUT : 0));
}

// --- What all connections have ---------------------------------------------------------------------

Result<std::shared_ptr<const Tls>> Tls::load(const TlsFiles& files) {
  ERR_clear_error();
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return Error::make(Code::kNoSpace, "TLS: no memory");
  const std::shared_ptr<const Tls> tls(new Tls(context));
  (void)SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  // The pieces of a write are gathered anew when it is tried again.
  (void)SSL_CTX_set_mode(context,
                         SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (files.ca.empty()) {
    (void)SSL_CTX_set_default_verify_paths(context);
  } else if (SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1) {
    return file_error("ca", files.ca);
  }
  if (files.cert.empty()) return tls;
  const std::string& key = files.key.empty() ? files.cert : files.key;
  if (SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) != 1)
    return file_error("cert", files.cert);
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1)
    return file_error("key", key);
  return tls;
}

Tls::~Tls() {
  SSL_CTX_free(context_);
}

Result<std::unique_ptr<TlsStream>> Tls::open(int fd, const std::string& host) const {
  SSL* const ssl = SSL_new(context_);
  BIO* const bio = ssl == nullptr ? nullptr : BIO_new(socket_method());
  if (bio == nullptr) {
    SSL_free(ssl);
    return Error::make(Code::kNoSpace, "TLS: no memory");
  }
  std::unique_ptr<TlsStream> stream(new TlsStream(ssl, host));
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  unsigned char binary[sizeof(in6_addr)];
  const bool is_address = ::inet_pton(AF_INET, host.c_str(), binary) == 1 ||
                          ::inet_pton(AF_INET6, host.c_str(), binary) == 1;
  const bool is_set = is_address
                          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1
                          : SSL_set1_host(ssl, host.c_str()) == 1 &&
                                SSL_set_tlsext_host_name(ssl, const_cast<char*>(host.c_str())) == 1;
  if (!is_set) return Error::make(Code::kInvalidArgument, "TLS: host \"%.100s\"", host.c_str());
  SSL_set_connect_state(ssl);
  return stream;
}

}  // namespace cachalot::storage
