// TransferEndpoint: memory that peers open by name, and batches of strided reads and writes.
#include <cachalot/transfer_endpoint.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "gil_release.h"
#include "memory.h"
#include "module.h"
#include "numbers.h"

namespace cachalot::python {
namespace {

constexpr std::uint64_t kMost = ~std::uint64_t{0} >> 1;

// An endpoint and the memory that it uses. In a forked child it does nothing: the threads are the parent's.
class EndpointObject {
 public:
  explicit EndpointObject(const TransferEndpointOptions& options) : process_(getpid()) {
    Result<TransferEndpoint> opened = [&] {
      const GilRelease release;
      return TransferEndpoint::open(options);
    }();
    endpoint_ = std::make_shared<TransferEndpoint>(value_of(std::move(opened)));
  }
  EndpointObject(const EndpointObject&) = delete;
  EndpointObject& operator=(const EndpointObject&) = delete;
  ~EndpointObject() { close(); }

  void close() {
    if (getpid() != process_) {
      // Its threads are the parent's: it cannot be ended here, and is left as it is.
      static_cast<void>(new std::shared_ptr<TransferEndpoint>(std::move(endpoint_)));
      return;
    }
    std::shared_ptr<TransferEndpoint> endpoint;
    {
      const std::lock_guard lock(mutex_);
      endpoint = endpoint_;
    }
    if (endpoint == nullptr) return;
    {
      const GilRelease release;
      endpoint->close();  // also if another thread is in it, or in a call
      const std::lock_guard lock(mutex_);
      endpoint_.reset();
      endpoint.reset();
    }
    // Nothing uses the memory now. Its end may call Python, and this again.
    const auto of_segments = std::exchange(registered_, {});
    const auto of_batches = std::exchange(in_batches_, {});
  }

  // Calls without the GIL.
  template <class F>
  auto call(F&& function) {
    std::shared_ptr<TransferEndpoint> endpoint;
    {
      const std::lock_guard lock(mutex_);
      if (getpid() == process_) endpoint = endpoint_;
    }
    if (endpoint == nullptr)
      refuse("transfer: the endpoint is closed, or this process is a fork of its own");
    const GilRelease release;
    return function(*endpoint);
  }

  // Keep the memory of a segment or a batch until it ends; at once if the endpoint is closed. With the GIL.
  void keep(const std::string& segment, Memory memory) {
    if (!is_closed()) registered_.insert_or_assign(segment, std::move(memory));
  }
  void keep(BatchId batch, Memory memory) {
    if (!is_closed()) in_batches_.emplace(batch, std::move(memory));
  }
  void drop(const std::string& segment) { static_cast<void>(registered_.extract(segment)); }
  void drop(BatchId batch) { static_cast<void>(in_batches_.extract(batch)); }

 private:
  bool is_closed() {
    const std::lock_guard lock(mutex_);
    return endpoint_ == nullptr;
  }

  const pid_t process_;
  std::map<std::string, Memory> registered_;  // the GIL guards both
  std::map<BatchId, Memory> in_batches_;
  std::mutex mutex_;
  std::shared_ptr<TransferEndpoint> endpoint_;
};

// A segment that an endpoint has opened.
struct SegmentObject {
  Segment segment;
};

const char* text_of(SegmentAccess access) {
  return access == SegmentAccess::kRead    ? "read"
         : access == SegmentAccess::kWrite ? "write"
                                           : "read_write";
}

SegmentAccess access_of(const std::string& given) {
  if (given == "read") return SegmentAccess::kRead;
  if (given == "write") return SegmentAccess::kWrite;
  if (given == "read_write") return SegmentAccess::kReadWrite;
  refuse("access: '%.60s'; expected 'read', 'write' or 'read_write'", given.c_str());
}

Memory contiguous(nb::handle object, const char* name, bool is_written) {
  Memory memory = Memory::of(object, name);
  if (!memory.is_contiguous)
    refuse("%s: %s; expected contiguous memory", name, memory.text().c_str());
  if (is_written && !memory.is_writable) refuse("%s: the memory is read-only", name);
  return memory;
}

std::span<std::byte> span_of(const Memory& memory) {
  return {static_cast<std::byte*>(memory.data), memory.bytes()};
}

// (offset, bytes), or (offset, loops, run_bytes); a loop is (count, stride_bytes) or a list of offsets.
StridedBytes strided_of(nb::handle given, const char* side) {
  if (!nb::isinstance<nb::tuple>(given))
    refuse_type(given, side, "a tuple (offset, bytes) or (offset, loops, run_bytes)");
  const nb::tuple items = nb::borrow<nb::tuple>(given);
  if (items.size() != 2 && items.size() != 3)
    refuse("%s: a tuple of %zu; expected (offset, bytes) or (offset, loops, run_bytes)", side,
           items.size());
  StridedBytes s;
  s.offset = whole_number(items[0], side, kMost);
  s.run_bytes = whole_number(items[items.size() - 1], side, kMost);
  if (items.size() == 2) return s;
  for (const nb::handle loop : items[1]) {
    StridedLoop& made = s.loops.emplace_back();
    if (nb::isinstance<nb::tuple>(loop) && nb::len(loop) == 2) {
      made.count = whole_number(loop[0], side, kMost);
      made.stride_bytes = whole_number(loop[1], side, kMost);
    } else if (nb::isinstance<nb::list>(loop)) {
      for (const nb::handle offset : loop)
        made.offsets.push_back(whole_number(offset, side, kMost));
      made.count = made.offsets.size();
    } else {
      refuse_type(loop, side, "a loop: (count, stride_bytes) or a list of offsets");
    }
  }
  return s;
}

std::vector<TransferDescriptor> descriptors_of(nb::handle given) {
  std::vector<TransferDescriptor> all;
  for (const nb::handle pair : given) {
    if (!nb::isinstance<nb::tuple>(pair) || nb::len(pair) != 2)
      refuse_type(pair, "descriptors", "a pair (local, remote)");
    all.push_back({strided_of(pair[0], "local"), strided_of(pair[1], "remote")});
  }
  return all;
}

std::uint64_t submit(EndpointObject& self, const SegmentObject& segment, nb::handle memory,
                     nb::handle descriptors, nb::handle deadline_s, const std::string& notice,
                     bool is_write) {
  Memory local = contiguous(memory, "memory", !is_write);
  const std::vector<TransferDescriptor> list = descriptors_of(descriptors);
  BatchOptions options;
  options.deadline_ns = nanoseconds(seconds(deadline_s, "deadline_s"));
  options.notice = notice;
  const BatchId id = value_of(self.call([&](TransferEndpoint& endpoint) {
    return is_write ? endpoint.write(segment.segment.id, span_of(local), list, options)
                    : endpoint.read(segment.segment.id, span_of(local), list, options);
  }));
  self.keep(id, std::move(local));
  return static_cast<std::uint64_t>(id);
}

nb::dict dict_of(const BatchStatus& status) {
  nb::dict d;
  d["state"] = status.state == BatchState::kRunning ? "running"
               : status.state == BatchState::kDone  ? "done"
                                                    : "failed";
  d["bytes"] = status.bytes;
  const bool is_failed = status.state == BatchState::kFailed;
  d["error"] = is_failed ? foreign_text(status.error.message) : nb::none();
  d["code"] = is_failed ? nb::object(nb::str(code_name(status.error.code))) : nb::none();
  return d;
}

nb::dict statistics(EndpointObject& self) {
  const EndpointStatistics s =
      self.call([](TransferEndpoint& endpoint) { return endpoint.statistics(); });
  nb::dict d;
  const std::pair<const char*, std::uint64_t> rows[] = {
      {"batches", s.batches},
      {"done_batches", s.done_batches},
      {"failed_batches", s.failed_batches},
      {"served_batches", s.served_batches},
      {"refused_batches", s.refused_batches},
      {"sent_bytes", s.sent_bytes},
      {"received_bytes", s.received_bytes},
      {"copied_bytes", s.copied_bytes},
      {"open_batches", s.open_batches},
      {"open_served_batches", s.open_served_batches}};
  for (const auto& [name, value] : rows) d[name] = value;
  return d;
}

}  // namespace

void add_transfer_endpoint(nb::module_& module) {
  nb::class_<SegmentObject>(module, "Segment",
                            "Memory of a peer that TransferEndpoint.open() gives.")
      .def_prop_ro("peer",
                   [](const SegmentObject& self) { return foreign_text(self.segment.peer); })
      .def_prop_ro("bytes", [](const SegmentObject& self) { return self.segment.bytes; })
      .def_prop_ro("access",
                   [](const SegmentObject& self) { return text_of(self.segment.access); });
  nb::class_<EndpointObject>(
      module, "TransferEndpoint",
      "Memory that other processes open by name, and batches of strided reads and writes in "
      "theirs.\n"
      "cachalot/transfer_endpoint.h says what calls mean.\n"
      "\n"
      "    owner:  endpoint.register('kv', array, 'read')\n"
      "    other:  segment = endpoint.open(addresses, 'kv')\n"
      "            batch = endpoint.read(segment, own_array, [(local, remote)])\n"
      "            endpoint.wait(batch)['state'] == 'done'\n"
      "\n"
      "local and remote are (offset, bytes), or (offset, loops, run_bytes) with loops, the first "
      "one\n"
      "slowest, of (count, stride_bytes) or a list of offsets.")
      .def(
          "__init__",
          [](EndpointObject* self, const std::string& name, const std::vector<std::string>& listen,
             const std::string& registry, const std::string& cluster_key_file, bool checksums,
             nb::handle peer_timeout_s) {
            const TransferEndpointOptions options{
                name,      listen,
                checksums, nanoseconds(seconds(peer_timeout_s, "peer_timeout_s")),
                registry,  cluster_key_file};
            new (self) EndpointObject(options);
          },
          nb::kw_only(), nb::arg("name"), nb::arg("listen") = std::vector<std::string>{},
          nb::arg("registry") = "", nb::arg("cluster_key_file") = "", nb::arg("checksums") = false,
          nb::arg("peer_timeout_s") = 5.0,
          "listen: 'tcp:IP:PORT' (port 0: any), 'ucx:IP:PORT', 'unix:@NAME', or 'auto': a socket "
          "of "
          "this machine\n"
          "registry: 'file:DIR' or 'etcd://HOST:PORT[/PREFIX]': where endpoints are found by name\n"
          "cluster_key_file: a file with the key that all endpoints have in common: 'tcp:' links "
          "are "
          "encrypted by it")
      .def_prop_ro(
          "addresses",
          [](EndpointObject& self) {
            return self.call([](TransferEndpoint& endpoint) { return endpoint.addresses(); });
          },
          "Where peers can connect.")
      .def(
          "register",
          [](EndpointObject& self, const std::string& name, nb::handle memory,
             const std::string& access) {
            const SegmentAccess allowed = access_of(access);
            Memory held = contiguous(memory, "memory", allowed != SegmentAccess::kRead);
            check(self.call([&](TransferEndpoint& endpoint) {
              return endpoint.register_memory(name, span_of(held), allowed);
            }));
            self.keep(name, std::move(held));
          },
          nb::arg("name"), nb::arg("memory"), nb::arg("access") = "read",
          "Peers may open the memory. access: 'read', 'write' or 'read_write'")
      .def(
          "unregister",
          [](EndpointObject& self, const std::string& name) {
            check(self.call(
                [&](TransferEndpoint& endpoint) { return endpoint.unregister_memory(name); }));
            self.drop(name);
          },
          nb::arg("name"), "Ends the batches of peers in it.")
      .def(
          "open",
          [](EndpointObject& self, const std::vector<std::string>& addresses,
             const std::string& segment, const std::string& peer, nb::handle timeout_s) {
            const std::uint64_t timeout_ns = nanoseconds(seconds(timeout_s, "timeout_s"));
            return SegmentObject{value_of(self.call([&](TransferEndpoint& endpoint) {
              return endpoint.open({peer, addresses}, segment, timeout_ns);
            }))};
          },
          nb::arg("addresses"), nb::arg("segment"), nb::kw_only(), nb::arg("peer") = "",
          nb::arg("timeout_s") = 5.0,
          "Opens a segment of the peer at these addresses. peer: its name, if it must have one. "
          "With "
          "a registry, open([], segment, peer=name) finds it")
      .def(
          "close_segment",
          [](EndpointObject& self, const SegmentObject& segment) {
            self.call([&](TransferEndpoint& endpoint) {
              endpoint.close(segment.segment.id);
              return true;
            });
          },
          nb::arg("segment"), "Cancels its batches and forgets it.")
      .def(
          "read",
          [](EndpointObject& self, const SegmentObject& segment, nb::handle memory,
             nb::handle descriptors, nb::handle deadline_s, const std::string& notice) {
            return submit(self, segment, memory, descriptors, deadline_s, notice, false);
          },
          nb::arg("segment"), nb::arg("memory"), nb::arg("descriptors"), nb::kw_only(),
          nb::arg("deadline_s") = 30.0, nb::arg("notice") = "",
          "Begins to read out of the segment into memory. Returns a number for the calls below.")
      .def(
          "write",
          [](EndpointObject& self, const SegmentObject& segment, nb::handle memory,
             nb::handle descriptors, nb::handle deadline_s, const std::string& notice) {
            return submit(self, segment, memory, descriptors, deadline_s, notice, true);
          },
          nb::arg("segment"), nb::arg("memory"), nb::arg("descriptors"), nb::kw_only(),
          nb::arg("deadline_s") = 30.0, nb::arg("notice") = "",
          "Begins to write memory into the segment. notice: sent to the owner when all bytes are "
          "in "
          "place")
      .def(
          "wait",
          [](EndpointObject& self, std::uint64_t batch, nb::handle timeout_s, nb::handle bytes) {
            const std::uint64_t timeout_ns = nanoseconds(optional_seconds(timeout_s, "timeout_s"));
            const std::uint64_t wanted =
                bytes.is_none() ? ~std::uint64_t{0} : whole_number(bytes, "bytes", kMost);
            return dict_of(value_of(self.call([&](TransferEndpoint& endpoint) {
              return endpoint.wait(BatchId{batch}, timeout_ns, wanted);
            })));
          },
          nb::arg("batch"), nb::kw_only(), nb::arg("timeout_s") = nb::none(),
          nb::arg("bytes") = nb::none(),
          "Waits until it has ended, or so many bytes are in place. Returns a dict: state "
          "('running',\n"
          "'done', 'failed'), bytes, error, code.")
      .def(
          "cancel",
          [](EndpointObject& self, std::uint64_t batch) {
            self.call([&](TransferEndpoint& endpoint) {
              endpoint.cancel(BatchId{batch});
              return true;
            });
          },
          nb::arg("batch"),
          "Ends it on both sides; nothing writes into its memory after this call.")
      .def(
          "release",
          [](EndpointObject& self, std::uint64_t batch) {
            self.call([&](TransferEndpoint& endpoint) {
              endpoint.release(BatchId{batch});
              return true;
            });
            self.drop(BatchId{batch});
          },
          nb::arg("batch"), "As cancel(), and forgets it and its memory.")
      .def(
          "notify",
          [](EndpointObject& self, const std::string& peer, const std::string& notice) {
            check(self.call(
                [&](TransferEndpoint& endpoint) { return endpoint.notify(peer, notice); }));
          },
          nb::arg("peer"), nb::arg("notice"), "Sends text to a connected peer.")
      .def(
          "notices",
          [](EndpointObject& self, nb::handle timeout_s) {
            const std::uint64_t timeout_ns = nanoseconds(seconds(timeout_s, "timeout_s"));
            nb::list all;
            for (const Notice& notice : self.call(
                     [&](TransferEndpoint& endpoint) { return endpoint.notices(timeout_ns); })) {
              all.append(nb::make_tuple(foreign_text(notice.peer), foreign_text(notice.text)));
            }
            return all;
          },
          nb::arg("timeout_s") = 0.0,
          "[(peer, text)] of the notices that have come; if there are none, waits for the first. A "
          "process that has connected by itself may say any name.")
      .def("statistics", &statistics)
      .def("close", &EndpointObject::close,
           "Ends all batches, also those of peers. Calls in other threads that wait return at "
           "once.\n"
           "Nothing uses the memory after this call; other calls raise InvalidArgumentError.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](EndpointObject& self, const nb::args&) { self.close(); });
}

}  // namespace cachalot::python
