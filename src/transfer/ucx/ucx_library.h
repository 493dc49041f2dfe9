// The functions of UCX that Cachalot calls, found in a library that is loaded at run time.
#pragma once

#include <cachalot/result.h>
#include <ucp/api/ucp.h>

#include <string>

namespace cachalot::transfer {

struct UcxLibrary {
  // The library stays loaded until the process ends. It leaves signal handlers as they were: UCX would replace those
  // of SIGSEGV and others.
  // @errors kNotFound: not there, or without one of these functions
  static Result<UcxLibrary> load(const std::string& name);

  const char* text(ucs_status_t status) const { return status_string(status); }

  decltype(&ucp_get_version) get_version;
  decltype(&ucp_get_version_string) get_version_string;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&ucp_listener_create) listener_create;
  decltype(&ucp_listener_query) listener_query;
  decltype(&ucp_listener_destroy) listener_destroy;
  decltype(&ucp_conn_request_query) conn_request_query;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close_nbx;
  decltype(&ucp_ep_flush_nbx) ep_flush_nbx;
  decltype(&ucp_am_send_nbx) am_send_nbx;
  decltype(&ucp_request_free) request_free;
  decltype(&ucs_status_string) status_string;
  // Of libucs: may be missing (null).
  ucs_status_t (*set_global_option)(const char* name, const char* value);
};

}  // namespace cachalot::transfer
