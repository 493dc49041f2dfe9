#include "transfer/link/tls.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace cachalot::transfer {
namespace {

constexpr std::size_t kRecordBytes = 16384;       // the most that TLS takes
constexpr std::size_t kBufferBytes = 256u << 10;  // of write(): bytes of one system call
constexpr std::size_t kReadAhead = 128u << 10;    // bytes of one system call
// RFC 8446 §5.5 wants a new key before 2^24.5 records, which are 390 GB.
constexpr std::uint64_t kBytesOfAKey = 256u << 20;
constexpr std::string_view kIdentity = "cachalot-cluster 1";
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
// An alert of TLS, fatal.
constexpr std::array kHandshakeFailure = {std::byte{21}, std::byte{3}, std::byte{3}, std::byte{0},
                                          std::byte{2},  std::byte{2}, std::byte{40}};
constexpr std::string_view kLabel{"cachalot-link 1\x01"};

template <auto free>
struct Freed {
  template <class T>
  void operator()(T* value) const {
    free(value);
  }
};
using Session = std::unique_ptr<SSL_SESSION, Freed<SSL_SESSION_free>>;

// The writing side of a stream: encrypted bytes go into a vector, so that OpenSSL never waits for the socket.
int append(BIO* bio, const char* bytes, int count) {
  auto& buffer = *static_cast<std::vector<std::byte>*>(BIO_get_data(bio));
  const auto* const from = reinterpret_cast<const std::byte*>(bytes);
  buffer.insert(buffer.end(), from, from + count);
  return count;
}
long control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// A copy of the session: a handshake writes into its own.
SSL_SESSION* session_of(SSL* ssl) {
  return SSL_SESSION_dup(static_cast<SSL_SESSION*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl))));
}
int use_session(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes,
                SSL_SESSION** session) {
  *id = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *id_bytes = kIdentity.size();
  *session = session_of(ssl);
  return *session != nullptr ? 1 : 0;
}
int find_session(SSL* ssl, const unsigned char* id, std::size_t id_bytes, SSL_SESSION** session) {
  const bool is_ours = std::string_view(reinterpret_cast<const char*>(id), id_bytes) == kIdentity;
  *session = is_ours ? session_of(ssl) : nullptr;
  return !is_ours || *session != nullptr ? 1 : 0;
}

}  // namespace

struct TlsContext::State {
  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> ssl;
  std::unique_ptr<BIO_METHOD, Freed<BIO_meth_free>> buffer;
  Session session;
};

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;

Result<std::unique_ptr<TlsContext>> TlsContext::make(const os::SecretKey& cluster_key) {
  auto state = std::make_unique<State>();
  state->ssl.reset(SSL_CTX_new(TLS_method()));
  state->buffer.reset(BIO_meth_new(BIO_TYPE_SOURCE_SINK, "cachalot"));
  state->session.reset(SSL_SESSION_new());
  // The key of the links: HKDF-Expand (RFC 5869) with a label.
  std::array<unsigned char, 32> key{};
  unsigned int key_bytes = 0;
  bool works =
      state->ssl && state->buffer && state->session &&
      HMAC(EVP_sha256(), cluster_key.bytes.data(), static_cast<int>(cluster_key.bytes.size()),
           reinterpret_cast<const unsigned char*>(kLabel.data()), kLabel.size(), key.data(),
           &key_bytes) != nullptr &&
      key_bytes == key.size() &&
      SSL_SESSION_set1_master_key(state->session.get(), key.data(), key.size()) == 1;
  OPENSSL_cleanse(key.data(), key.size());
  SSL_CTX* const ssl = state->ssl.get();
  works = works && SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) == 1 &&
          SSL_CTX_set_ciphersuites(ssl, kCiphers) == 1 &&
          SSL_CTX_set1_groups_list(ssl, "X25519") == 1 && SSL_CTX_set_num_tickets(ssl, 0) == 1 &&
          BIO_meth_set_write(state->buffer.get(), append) == 1 &&
          BIO_meth_set_ctrl(state->buffer.get(), control) == 1;
  if (works) {
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_read_ahead(ssl, 1);
    SSL_CTX_set_default_read_buffer_len(ssl, kReadAhead);
    SSL_CTX_set_app_data(ssl, state->session.get());
    SSL_CTX_set_psk_use_session_callback(ssl, use_session);
    SSL_CTX_set_psk_find_session_callback(ssl, find_session);
    const std::unique_ptr<SSL, Freed<SSL_free>> any(SSL_new(ssl));
    const SSL_CIPHER* const cipher = any ? SSL_CIPHER_find(any.get(), kCipherId) : nullptr;
    works = cipher != nullptr && SSL_SESSION_set_cipher(state->session.get(), cipher) == 1 &&
            SSL_SESSION_set_protocol_version(state->session.get(), TLS1_3_VERSION) == 1;
  }
  if (works) return std::unique_ptr<TlsContext>(new TlsContext(std::move(state)));
  return Error::make(Code::kInternal, "links cannot be encrypted: OpenSSL has no TLS 1.3 here");
}

struct TlsStream::State {
  std::unique_ptr<SSL, Freed<SSL_free>> ssl;
  int fd = -1;
  bool is_called = false, is_open = false;
  std::optional<int> end;  // what read() returns from now on: an errno, 0: the end of the stream
  const char* failure = nullptr;  // as OpenSSL names it
  std::vector<std::byte> buffer;  // encrypted
  std::size_t sent = 0;           // of it
  std::vector<std::byte> record;  // where small parts become one
  std::uint64_t key_bytes = 0;    // written by this key

  // What a call of OpenSSL that did not succeed means. @return an errno; 0: the end of the stream
  int failed(int result);
  bool encrypt(const void* bytes, std::size_t count);
};

TlsStream::TlsStream(TlsContext& context, int fd, bool is_called)
    : state_(std::make_unique<State>()) {
  state_->fd = fd;
  state_->is_called = is_called;
  state_->ssl.reset(SSL_new(context.state().ssl.get()));
  BIO* const in = BIO_new_socket(fd, BIO_NOCLOSE);
  BIO* const out = BIO_new(context.state().buffer.get());
  if (!state_->ssl || in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    state_->ssl.reset();
    return;
  }
  BIO_set_data(out, &state_->buffer);
  BIO_set_init(out, 1);
  SSL_set_bio(state_->ssl.get(), in, out);
  if (is_called) {
    SSL_set_accept_state(state_->ssl.get());
  } else {
    SSL_set_connect_state(state_->ssl.get());
    // No certificate is right: only the key opens a stream. (The called side has none to offer.)
    SSL_set_verify(state_->ssl.get(), SSL_VERIFY_PEER, nullptr);
  }
}
TlsStream::~TlsStream() = default;

int TlsStream::State::failed(int result) {
  const int error = errno;
  const int what = SSL_get_error(ssl.get(), result);
  if (what == SSL_ERROR_WANT_READ) return EAGAIN;
  if (what == SSL_ERROR_ZERO_RETURN) return 0;
  const unsigned long reason = ERR_peek_error();
  if (what == SSL_ERROR_SYSCALL) return reason == 0 ? error : EIO;
  if (ERR_GET_REASON(reason) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return 0;
  const bool is_plain = ERR_GET_REASON(reason) == SSL_R_WRONG_VERSION_NUMBER;
  failure = is_plain ? "the peer does not encrypt" : ERR_reason_error_string(reason);
  return EBADMSG;
}

int TlsStream::open() {
  State& s = *state_;
  if (!s.ssl) return ENOMEM;
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(s.ssl.get());
  int error = result == 1 ? 0 : s.failed(result);
  if (result != 1 && error == 0) error = ECONNRESET;  // the peer has closed the connection
  if (result == 1 && SSL_session_reused(s.ssl.get()) != 1) {
    s.failure = "it does not use the key";
    error = EBADMSG;
  }
  // A peer that does not speak TLS gets no alert from OpenSSL.
  if (error == EBADMSG && s.is_called && s.buffer.empty())
    s.buffer.assign(kHandshakeFailure.begin(), kHandshakeFailure.end());
  const int flushed = flush();
  s.is_open = error == 0;
  return error == 0 && flushed != EAGAIN ? flushed : error;
}

bool TlsStream::is_open() const {
  return state_->is_open;
}

ssize_t TlsStream::read(std::span<const iovec> parts) {
  State& s = *state_;
  ERR_clear_error();
  std::size_t taken = 0;
  int error = EAGAIN;
  for (std::size_t at = 0, skip = 0; at < parts.size() && !s.end;) {
    std::size_t count = 0;
    errno = 0;
    const int result = SSL_read_ex(s.ssl.get(), static_cast<std::byte*>(parts[at].iov_base) + skip,
                                   parts[at].iov_len - skip, &count);
    if (result != 1) {
      error = s.failed(result);
      if (error == EAGAIN) break;
      s.end = error;
    }
    taken += count;
    skip += count;
    if (skip < parts[at].iov_len) continue;
    ++at;
    skip = 0;
  }
  if (taken > 0 || s.end == 0) return static_cast<ssize_t>(taken);
  errno = s.end.value_or(error);
  return -1;
}

bool TlsStream::State::encrypt(const void* bytes, std::size_t count) {
  if (key_bytes >= kBytesOfAKey) {
    if (SSL_key_update(ssl.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
    key_bytes = 0;
  }
  key_bytes += count;
  std::size_t written = 0;
  return SSL_write_ex(ssl.get(), bytes, count, &written) == 1 && written == count;
}

ssize_t TlsStream::write(std::span<const iovec> parts) {
  State& s = *state_;
  if (const int error = flush(); error != 0) {
    errno = error;
    return -1;
  }
  ERR_clear_error();
  std::size_t taken = 0, skip = 0;  // bytes of the first part
  while (!parts.empty() && taken < kBufferBytes) {
    const auto* const from = static_cast<const std::byte*>(parts.front().iov_base) + skip;
    const std::size_t left = parts.front().iov_len - skip;
    bool works = true;
    if (left >= kRecordBytes) {
      works = s.encrypt(from, kRecordBytes);
      taken += kRecordBytes;
      skip += kRecordBytes;
    } else {
      s.record.clear();
      while (!parts.empty() && s.record.size() < kRecordBytes) {
        const auto* const piece = static_cast<const std::byte*>(parts.front().iov_base) + skip;
        const std::size_t count =
            std::min(parts.front().iov_len - skip, kRecordBytes - s.record.size());
        s.record.insert(s.record.end(), piece, piece + count);
        skip += count;
        if (skip < parts.front().iov_len) break;
        parts = parts.subspan(1);
        skip = 0;
      }
      works = s.encrypt(s.record.data(), s.record.size());
      taken += s.record.size();
    }
    if (!works) {
      errno = EPROTO;
      return -1;
    }
    if (!parts.empty() && skip == parts.front().iov_len) {
      parts = parts.subspan(1);
      skip = 0;
    }
  }
  if (const int error = flush(); error != 0 && error != EAGAIN) {
    errno = error;
    return -1;
  }
  return static_cast<ssize_t>(taken);
}

bool TlsStream::is_full() const {
  return state_->sent < state_->buffer.size();
}

int TlsStream::flush() {
  State& s = *state_;
  while (s.sent < s.buffer.size()) {
    const ssize_t count =
        ::send(s.fd, s.buffer.data() + s.sent, s.buffer.size() - s.sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    s.sent += static_cast<std::size_t>(count);
  }
  s.buffer.clear();
  s.sent = 0;
  return 0;
}

Error TlsStream::error(const std::string& address, int error) const {
  const char* const why = state_->failure;
  // As a scan of ports does.
  if (state_->is_called && received_bytes() == 0)
    return Error::make(Code::kIo, "%s: the peer has closed the connection", address.c_str());
  if (state_->is_open) {
    return Error::make(Code::kCorrupt, "%s: bytes were changed on their way: %s", address.c_str(),
                       why != nullptr ? why : std::strerror(error));
  }
  if (why != nullptr) {
    return Error::make(Code::kPermission,
                       "%s: no encrypted connection: %s; expected a peer with the same cluster key",
                       address.c_str(), why);
  }
  const bool is_closed = error == ECONNRESET || error == EPIPE;
  // A peer without a key closes at our first bytes. A caller has given up: perhaps this process was stopped.
  if (is_closed && !state_->is_called) {
    return Error::make(Code::kPermission,
                       "%s: no encrypted connection: the peer has closed it; it has ended, or has "
                       "no cluster key",
                       address.c_str());
  }
  return Error::from_errno(error, "%s: the connection has ended before it was encrypted",
                           address.c_str());
}

std::uint64_t TlsStream::received_bytes() const {
  return state_->ssl ? BIO_number_read(SSL_get_rbio(state_->ssl.get())) : 0;
}
std::uint64_t TlsStream::buffer_bytes() const {
  return state_->buffer.capacity() + state_->record.capacity();
}

}  // namespace cachalot::transfer
