#include "hangup.h"

#include <semaphore.h>
#include <signal.h>

#include <cerrno>
#include <utility>

namespace cachalot::apps {
namespace {

// What a handler can reach.
sem_t hangups;

void on_hangup(int) {
  const int before = errno;
  sem_post(&hangups);
  errno = before;
}

}  // namespace

OnHangup::OnHangup(std::function<void()> call) {
  sem_init(&hangups, 0, 0);
  // The thread gets no signal: those are for the keeper, whose nap they end.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::jthread([call = std::move(call)](const std::stop_token& stop) {
    for (;;) {
      while (sem_wait(&hangups) != 0) {
      }
      if (stop.stop_requested()) return;
      call();
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  struct sigaction action {};
  action.sa_handler = on_hangup;
  action.sa_flags = SA_RESTART;
  sigaction(SIGHUP, &action, nullptr);
}

OnHangup::~OnHangup() {
  ::signal(SIGHUP, SIG_IGN);
  thread_.request_stop();
  sem_post(&hangups);
  thread_.join();
}

std::vector<std::string> changed_flags(const Command& before, const Command& now) {
  std::vector<std::string> changed;
  for (const Flag* flag : now.get_options()) {
    const std::string name = flag->get_name();
    const Flag* const old = before.get_option_no_throw(name);
    if (name.starts_with("--") && old != nullptr && old->results() != flag->results())
      changed.push_back(name.substr(2));
  }
  return changed;
}

}  // namespace cachalot::apps
