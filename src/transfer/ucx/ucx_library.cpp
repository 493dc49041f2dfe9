#include "transfer/ucx/ucx_library.h"

#include <dlfcn.h>

#include <array>
#include <csignal>
#include <cstdlib>

namespace cachalot::transfer {
namespace {

// The handlers of all signals, put back at the end of its life.
class KeptSignalHandlers {
 public:
  KeptSignalHandlers() {
    for (int signal = 1; signal < NSIG; ++signal)
      is_kept_[signal] = read(signal, handlers_[signal]);
  }
  ~KeptSignalHandlers() {
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction now {};
      if (is_kept_[signal] && read(signal, now) && !is_same(now, handlers_[signal]))
        sigaction(signal, &handlers_[signal], nullptr);
    }
  }
  KeptSignalHandlers(const KeptSignalHandlers&) = delete;
  KeptSignalHandlers& operator=(const KeptSignalHandlers&) = delete;

 private:
  static bool read(int signal, struct sigaction& handler) {
    return sigaction(signal, nullptr, &handler) == 0;
  }
  static bool is_same(const struct sigaction& a, const struct sigaction& b) {
    return a.sa_flags == b.sa_flags && a.sa_sigaction == b.sa_sigaction;
  }

  std::array<struct sigaction, NSIG> handlers_ = {};
  std::array<bool, NSIG> is_kept_ = {};
};

template <class Function>
Status find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return {};
  return Error::make(Code::kNotFound, "ucx: the library has no %s; expected UCX 1.13 or later",
                     name);
}

}  // namespace

Result<UcxLibrary> UcxLibrary::load(const std::string& name) {
  const KeptSignalHandlers keep;
#ifdef __SANITIZE_THREAD__
  // UCX replaces madvise() and others in the whole process, and takes a lock in them. glibc calls madvise() at the end of
  // each thread, after ThreadSanitizer has given up its state of the thread: that lock is a crash or a hang.
  setenv("UCX_MEM_EVENTS", "n", 0);
#endif
  // It has threads and callbacks of its own: it is never unloaded.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    return Error::make(Code::kNotFound, "ucx: %s cannot be loaded: %s", name.c_str(), dlerror());
  UcxLibrary ucx{};
  CACHALOT_TRY(find(library, "ucp_get_version", ucx.get_version));
  CACHALOT_TRY(find(library, "ucp_get_version_string", ucx.get_version_string));
  CACHALOT_TRY(find(library, "ucp_config_read", ucx.config_read));
  CACHALOT_TRY(find(library, "ucp_config_modify", ucx.config_modify));
  CACHALOT_TRY(find(library, "ucp_config_release", ucx.config_release));
  CACHALOT_TRY(find(library, "ucp_init_version", ucx.init_version));
  CACHALOT_TRY(find(library, "ucp_cleanup", ucx.cleanup));
  CACHALOT_TRY(find(library, "ucp_worker_create", ucx.worker_create));
  CACHALOT_TRY(find(library, "ucp_worker_destroy", ucx.worker_destroy));
  CACHALOT_TRY(find(library, "ucp_worker_get_efd", ucx.worker_get_efd));
  CACHALOT_TRY(find(library, "ucp_worker_arm", ucx.worker_arm));
  CACHALOT_TRY(find(library, "ucp_worker_progress", ucx.worker_progress));
  CACHALOT_TRY(find(library, "ucp_worker_set_am_recv_handler", ucx.worker_set_am_recv_handler));
  CACHALOT_TRY(find(library, "ucp_listener_create", ucx.listener_create));
  CACHALOT_TRY(find(library, "ucp_listener_query", ucx.listener_query));
  CACHALOT_TRY(find(library, "ucp_listener_destroy", ucx.listener_destroy));
  CACHALOT_TRY(find(library, "ucp_conn_request_query", ucx.conn_request_query));
  CACHALOT_TRY(find(library, "ucp_ep_create", ucx.ep_create));
  CACHALOT_TRY(find(library, "ucp_ep_close_nbx", ucx.ep_close_nbx));
  CACHALOT_TRY(find(library, "ucp_ep_flush_nbx", ucx.ep_flush_nbx));
  CACHALOT_TRY(find(library, "ucp_am_send_nbx", ucx.am_send_nbx));
  CACHALOT_TRY(find(library, "ucp_request_free", ucx.request_free));
  CACHALOT_TRY(find(library, "ucs_status_string", ucx.status_string));
  ucx.set_global_option = reinterpret_cast<decltype(ucx.set_global_option)>(
      dlsym(library, "ucs_global_opts_set_value"));
  return ucx;
}

}  // namespace cachalot::transfer
