#include "storage/redis/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace cachalot::storage {
namespace {

// Belongs to the thread and to the call, which may end first.
struct Question {
  std::mutex mutex;
  std::condition_variable answered;
  bool is_answered = false;
  int failure = 0;
  std::string address;
};

void ask(const std::string& host, Question& question) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  char text[NI_MAXHOST] = {};
  if (failure == 0) {
    (void)::getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0,
                        NI_NUMERICHOST);
    ::freeaddrinfo(found);
  }
  const std::lock_guard lock(question.mutex);
  question.is_answered = true;
  question.failure = failure;
  question.address = text;
  question.answered.notify_one();
}

}  // namespace

Result<std::string> resolve_host(const std::string& host, std::uint64_t deadline_ns) {
  unsigned char binary[sizeof(in6_addr)];
  if (::inet_pton(AF_INET, host.c_str(), binary) == 1 ||
      ::inet_pton(AF_INET6, host.c_str(), binary) == 1) {
    return host;
  }
  const auto question = std::make_shared<Question>();
  std::thread([question, host] { ask(host, *question); }).detach();
  std::unique_lock lock(question->mutex);
  const std::uint64_t now_ns = base::SteadyClock::read();
  const std::chrono::nanoseconds left(deadline_ns > now_ns ? deadline_ns - now_ns : 0);
  if (!question->answered.wait_for(lock, left, [&] { return question->is_answered; })) {
    return Error::make(Code::kTimeout, "host \"%.100s\": no address before the deadline",
                       host.c_str());
  }
  if (question->failure == 0) return question->address;
  return Error::make(Code::kIo, "host \"%.100s\": %.80s", host.c_str(),
                     ::gai_strerror(question->failure));
}

}  // namespace cachalot::storage
