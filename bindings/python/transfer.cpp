// TransferRank: KV handed from one engine instance to another.
#include <cachalot/transfer.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cinttypes>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "gil_release.h"
#include "hash.h"
#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "paged_cache.h"

namespace cachalot::python {
namespace {

constexpr std::size_t kIdDigits = 32;

std::string text_of(const OfferId& id) {
  char text[kIdDigits + 1];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, id.high, id.low);
  return text;
}

OfferId id_of(const std::string& given) {
  OfferId id;
  const bool is_hex =
      given.size() == kIdDigits && given.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex)
    refuse("id: '%.60s' is not 32 hexadecimal digits, as random_offer_id() makes them",
           given.c_str());
  id.high = std::stoull(given.substr(0, 16), nullptr, 16);
  id.low = std::stoull(given.substr(16), nullptr, 16);
  return id;
}

// A member of a reference, which comes from outside.
nb::object member(const nb::dict& reference, const char* name) {
  if (!reference.contains(name)) refuse("reference: has no '%s'", name);
  return reference[name];
}

KvReference reference_of(const nb::dict& given) {
  KvReference reference;
  reference.instance = text(member(given, "instance"), "reference: instance");
  reference.id = id_of(text(member(given, "id"), "reference: id"));
  reference.tokens =
      whole_number(member(given, "tokens"), "reference: tokens", ~std::uint64_t{0} >> 1);
  reference.shape.tp_size = number(member(given, "tp_size"), "reference: tp_size");
  reference.shape.pp_size = number(member(given, "pp_size"), "reference: pp_size");
  if (given.contains("stage_layers")) {
    const Numbers layers(given["stage_layers"], "reference: stage_layers");
    reference.shape.stage_layers.assign(layers.get().begin(), layers.get().end());
  }
  if (given.contains("addresses")) {
    for (const nb::handle rank : nb::object(given["addresses"])) {
      std::vector<std::string>& of_rank = reference.addresses.emplace_back();
      for (const nb::handle address : rank)
        of_rank.push_back(text(address, "reference: an address"));
    }
  }
  if (given.contains("expects_note")) {
    const nb::object expects = given["expects_note"];
    if (!PyBool_Check(expects.ptr()))
      refuse_type(expects, "reference: expects_note: ", "True or False");
    reference.expects_note = expects.is(nb::handle(Py_True));
  }
  return reference;
}

// A rank and the memory of its cache. In a forked child it does nothing: the threads are the parent's.
class RankObject {
 public:
  RankObject(const TransferOptions& options, std::vector<Memory> held)
      : held_(std::move(held)), process_(getpid()) {
    Result<TransferRank> opened = [&] {
      const GilRelease release;
      return TransferRank::open(options);
    }();
    rank_ = std::make_shared<TransferRank>(value_of(std::move(opened)));
  }
  RankObject(const RankObject&) = delete;
  RankObject& operator=(const RankObject&) = delete;
  ~RankObject() { close(); }

  void close() {
    if (getpid() != process_) {
      // Its threads are the parent's: it cannot be ended here, and is left as it is.
      static_cast<void>(new std::shared_ptr<TransferRank>(std::move(rank_)));
      return;
    }
    std::shared_ptr<TransferRank> rank;
    {
      const std::lock_guard lock(mutex_);
      rank = rank_;
    }
    if (rank == nullptr) return;
    {
      const GilRelease release;
      rank->close();  // also if another thread is in it, or in a call
      const std::lock_guard lock(mutex_);
      rank_.reset();
      rank.reset();
    }
    // Nothing uses the tensors now. Their end may call Python, and this again.
    const std::vector<Memory> dropped = std::exchange(held_, {});
  }

  // Calls without the GIL.
  template <class F>
  auto call(F&& function) {
    std::shared_ptr<TransferRank> rank;
    {
      const std::lock_guard lock(mutex_);
      if (getpid() == process_) rank = rank_;
    }
    if (rank == nullptr)
      refuse("transfer: the rank is closed, or this process is a fork of its own");
    const GilRelease release;
    auto result = function(*rank);
    return result;
  }

 private:
  std::vector<Memory> held_;
  const pid_t process_;
  std::mutex mutex_;
  std::shared_ptr<TransferRank> rank_;
};

void open_rank(RankObject* self, const std::string& instance, const std::string& model,
               nb::handle geometry, nb::handle layout, const nb::object& tensors, nb::handle pages,
               nb::handle page_tokens, nb::handle page_stride_bytes, nb::handle strides,
               nb::handle stage_layers, nb::handle machines, const std::vector<std::string>& listen,
               const std::string& registry, const std::string& cluster_key_file, bool checksums,
               nb::handle peer_timeout_s, nb::handle device, nb::handle stream,
               std::uint64_t bounce_bytes) {
  TransferOptions options;
  options.instance = instance;
  options.model = model;
  if (!nb::isinstance<KvGeometry>(geometry)) refuse_type(geometry, "geometry: ", "a KvGeometry");
  options.geometry = instance_of<KvGeometry>(geometry, "geometry");
  options.shape.tp_size = options.geometry.tp_size;
  options.shape.pp_size = options.geometry.pp_size;
  if (!stage_layers.is_none())
    options.shape.stage_layers = Numbers::copy(stage_layers, "stage_layers");
  if (!machines.is_none()) options.shape.machines = Numbers::copy(machines, "machines");
  std::vector<Memory> held;
  options.cache = paged_cache_of(
      {layout, tensors, pages, page_tokens, page_stride_bytes, strides, device, stream},
      options.geometry, held);
  options.bounce_bytes = bounce_bytes;
  options.listen = listen;
  options.registry = registry;
  options.cluster_key_file = cluster_key_file;
  options.checksums = checksums;
  options.peer_timeout_ns = nanoseconds(seconds(peer_timeout_s, "peer_timeout_s"));
  new (self) RankObject(options, std::move(held));
}

nb::dict dict_of(const AskStatus& status) {
  nb::dict d;
  d["state"] = status.state == HandoverState::kRunning ? "running"
               : status.state == HandoverState::kDone  ? "done"
                                                       : "failed";
  d["layers"] = status.layers;
  d["bytes"] = status.bytes;
  const bool is_failed = status.state == HandoverState::kFailed;
  d["error"] = is_failed ? foreign_text(status.error.message) : nb::none();
  d["code"] = is_failed ? nb::object(nb::str(code_name(status.error.code))) : nb::none();
  d["note"] = nb::bytes(reinterpret_cast<const char*>(status.note.data()), status.note.size());
  return d;
}

void offer(RankObject& self, const std::string& id, nb::handle pages, nb::handle tokens,
           nb::handle deadline_s, nb::handle layers_ready, bool has_note, nb::handle hashes,
           bool standing) {
  const Numbers numbers(pages, "pages");
  OfferOptions options;
  options.id = id_of(id);
  options.pages = numbers.get();
  options.tokens = whole_number(tokens, "tokens", ~std::uint64_t{0} >> 1);
  options.deadline_ns = nanoseconds(seconds(deadline_s, "deadline_s"));
  if (!layers_ready.is_none()) options.layers_ready = number(layers_ready, "layers_ready");
  options.has_note = has_note;
  options.is_standing = standing;
  std::optional<Hashes> given;
  if (!hashes.is_none()) {
    given.emplace(hashes);
    options.hashes = given->get();
  }
  check(self.call([&](TransferRank& rank) { return rank.offer(options); }));
}

std::uint64_t ask(RankObject& self, const nb::dict& reference, nb::handle pages,
                  nb::handle deadline_s, nb::handle first_token, bool waits_for_offer,
                  nb::handle tokens, nb::handle hash) {
  const KvReference kv = reference_of(reference);
  const Numbers numbers(pages, "pages");
  AskOptions options;
  options.pages = numbers.get();
  options.deadline_ns = nanoseconds(seconds(deadline_s, "deadline_s"));
  options.first_token = whole_number(first_token, "first_token", ~std::uint64_t{0} >> 1);
  options.waits_for_offer = waits_for_offer;
  options.tokens = whole_number(tokens, "tokens", ~std::uint64_t{0} >> 1);
  options.hash = parent_of(hash, "hash");
  return static_cast<std::uint64_t>(
      value_of(self.call([&](TransferRank& rank) { return rank.ask(kv, options); })));
}

nb::dict wait(RankObject& self, std::uint64_t number_of_ask, nb::handle timeout_s,
              nb::handle layers) {
  const std::uint64_t timeout_ns = nanoseconds(optional_seconds(timeout_s, "timeout_s"));
  const std::uint32_t wanted = optional_number(layers, "layers").value_or(kAllLayers);
  return dict_of(value_of(self.call(
      [&](TransferRank& rank) { return rank.wait(AskId{number_of_ask}, timeout_ns, wanted); })));
}

nb::list ended_offers(RankObject& self) {
  nb::list all;
  for (const EndedOffer& end : self.call([](TransferRank& rank) { return rank.ended_offers(); })) {
    const nb::object error =
        end.status.ok() ? nb::none() : foreign_text(end.status.error().message);
    all.append(nb::make_tuple(text_of(end.id), error));
  }
  return all;
}

nb::dict statistics(RankObject& self) {
  const TransferStatistics s = self.call([](TransferRank& rank) { return rank.statistics(); });
  nb::dict d;
  const std::pair<const char*, std::uint64_t> rows[] = {{"offers", s.offers},
                                                        {"taken_offers", s.taken_offers},
                                                        {"declined_offers", s.declined_offers},
                                                        {"expired_offers", s.expired_offers},
                                                        {"failed_offers", s.failed_offers},
                                                        {"asks", s.asks},
                                                        {"done_asks", s.done_asks},
                                                        {"failed_asks", s.failed_asks},
                                                        {"refused_asks", s.refused_asks},
                                                        {"sent_bytes", s.sent_bytes},
                                                        {"received_bytes", s.received_bytes},
                                                        {"copied_bytes", s.copied_bytes},
                                                        {"resent_bytes", s.resent_bytes},
                                                        {"corrupt_chunks", s.corrupt_chunks},
                                                        {"dropped_chunks", s.dropped_chunks},
                                                        {"open_offers", s.open_offers},
                                                        {"open_asks", s.open_asks}};
  for (const auto& [name, value] : rows) d[name] = value;
  return d;
}

}  // namespace

void add_transfer(nb::module_& module) {
  module.def(
      "random_offer_id", [] { return text_of(value_of(random_offer_id())); },
      "The name of an offer, and its secret: 32 hexadecimal digits that are used once. Do not make "
      "up others.");
  nb::class_<RankObject>(
      module, "TransferRank",
      "One rank of an engine instance that hands KV over to ranks of other instances, or takes\n"
      "it over from them, without a pool. cachalot/transfer.h says what calls mean.\n"
      "\n"
      "    prefill:  rank.offer(id, pages, tokens, deadline_s=30)\n"
      "    decode:   ask = rank.ask(reference, pages, deadline_s=30)\n"
      "              rank.wait(ask)['state'] == 'done'\n"
      "\n"
      "A reference is a dict, for JSON: instance, id, tokens, tp_size, pp_size, addresses (of "
      "each\n"
      "rank), and if wanted stage_layers, expects_note.")
      .def("__init__", &open_rank, nb::kw_only(), nb::arg("instance"), nb::arg("model"),
           nb::arg("geometry"), nb::arg("layout") = nb::none(), nb::arg("tensors"),
           nb::arg("pages"), nb::arg("page_tokens") = 0, nb::arg("page_stride_bytes") = 0,
           nb::arg("strides") = nb::none(), nb::arg("stage_layers") = nb::none(),
           nb::arg("machines") = nb::none(), nb::arg("listen") = std::vector<std::string>{"auto"},
           nb::arg("registry") = "", nb::arg("cluster_key_file") = "", nb::arg("checksums") = false,
           nb::arg("peer_timeout_s") = 5.0, nb::arg("device") = nb::none(),
           nb::arg("stream") = nb::none(), nb::arg("bounce_bytes") = std::uint64_t{1} << 30,
           "machines: of each rank of the instance, a number that ranks of one machine share: of "
           "those that hold the same bytes, one fetches them and the others copy from it\n"
           "listen: 'tcp:IP:PORT' (port 0: any), 'ucx:IP:PORT', 'unix:@NAME', or 'auto': a socket "
           "of this machine\n"
           "registry: 'file:DIR' or 'etcd://HOST:PORT[/PREFIX]': where ranks are found by the name "
           "of their instance, for references without addresses\n"
           "cluster_key_file: a file with the key that all ranks have in common: 'tcp:' links are "
           "encrypted by it\n"
           "peer_timeout_s: of silence, while something waits for a peer\n"
           "device, stream: of tensors on a GPU, as register_cache() takes them; bounce_bytes: "
           "page-locked memory\n"
           "    between the GPU and the links")
      .def_prop_ro(
          "addresses",
          [](RankObject& self) {
            return self.call([](TransferRank& rank) { return rank.addresses(); });
          },
          "Where peers can connect.")
      .def(
          "set_instance_addresses",
          [](RankObject& self, const std::vector<std::vector<std::string>>& addresses) {
            check(self.call(
                [&](TransferRank& rank) { return rank.set_instance_addresses(addresses); }));
          },
          nb::arg("addresses"),
          "Of each rank of this instance: where it can be reached, for copies between ranks of one "
          "machine. Not needed with a registry.")
      .def("offer", &offer, nb::arg("id"), nb::arg("pages"), nb::arg("tokens"), nb::kw_only(),
           nb::arg("deadline_s"), nb::arg("layers_ready") = nb::none(), nb::arg("has_note") = false,
           nb::arg("hashes") = nb::none(), nb::arg("standing") = false,
           "hashes: of each page, chained, so that a part of the offer can be asked for\n"
           "standing: any number of instances may take it until the deadline\n"
           "Lends pages to the instance that asks for them. Do not write them until ended_offers() "
           "names the id.")
      .def(
          "layers_ready",
          [](RankObject& self, const std::string& id, nb::handle layers) {
            const OfferId offer_id = id_of(id);
            const std::uint32_t ready = number(layers, "layers");
            check(
                self.call([&](TransferRank& rank) { return rank.layers_ready(offer_id, ready); }));
          },
          nb::arg("id"), nb::arg("layers"), "The first `layers` layers of this rank are computed.")
      .def(
          "finish",
          [](RankObject& self, const std::string& id, const nb::bytes& note) {
            const OfferId offer_id = id_of(id);
            const std::span<const std::byte> bytes(static_cast<const std::byte*>(note.data()),
                                                   note.size());
            check(self.call([&](TransferRank& rank) { return rank.finish(offer_id, bytes); }));
          },
          nb::arg("id"), nb::arg("note") = nb::bytes("", 0),
          "All layers are computed; the note goes to each rank that asks.")
      .def(
          "withdraw",
          [](RankObject& self, const std::string& id) {
            const OfferId offer_id = id_of(id);
            check(self.call([&](TransferRank& rank) { return rank.withdraw(offer_id); }));
          },
          nb::arg("id"), "Takes the pages back: nothing reads them after this call.")
      .def("ended_offers", &ended_offers,
           "[(id, None or why it failed)] of the offers that have ended since the last call.")
      .def(
          "ask", &ask, nb::arg("reference"), nb::arg("pages"), nb::kw_only(), nb::arg("deadline_s"),
          nb::arg("first_token") = 0, nb::arg("waits_for_offer") = false, nb::arg("tokens") = 0,
          nb::arg("hash") = nb::none(),
          "tokens: so many of the offer, from its first one on; 0: all\n"
          "hash: of the last page of these tokens; if the offer has another one there, it is "
          "refused\n"
          "Begins to fetch the KV of a reference into pages. Returns a number for the calls below.")
      .def("wait", &wait, nb::arg("ask"), nb::kw_only(), nb::arg("timeout_s") = nb::none(),
           nb::arg("layers") = nb::none(),
           "Waits until it has ended, or so many layers have arrived. Returns a dict: state "
           "('running',\n"
           "'done', 'failed'), layers, bytes, error, code, note.")
      .def(
          "release",
          [](RankObject& self, std::uint64_t number_of_ask) {
            self.call([&](TransferRank& rank) {
              rank.release(AskId{number_of_ask});
              return true;
            });
          },
          nb::arg("ask"),
          "Forgets it. One that has not ended is cancelled; nothing writes into its pages after "
          "this call.")
      .def(
          "decline",
          [](RankObject& self, const nb::dict& reference, nb::handle deadline_s) {
            const KvReference kv = reference_of(reference);
            const std::uint64_t deadline_ns = nanoseconds(seconds(deadline_s, "deadline_s"));
            check(self.call([&](TransferRank& rank) { return rank.decline(kv, deadline_ns); }));
          },
          nb::arg("reference"), nb::kw_only(), nb::arg("deadline_s"),
          "Tells the prefill ranks that this instance will not ask, so that they free the pages. "
          "Rank 0 does so\n"
          "for its instance.")
      .def("statistics", &statistics)
      .def("close", &RankObject::close,
           "Ends all offers and asks. Calls in other threads that wait return at once.\n"
           "Nothing uses the tensors after this call; other calls raise InvalidArgumentError.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](RankObject& self, const nb::args&) { self.close(); });
}

}  // namespace cachalot::python
