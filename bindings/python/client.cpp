// Client: attaching, caches, and synchronous calls.
#include <cachalot/client.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cinttypes>
#include <string>
#include <vector>

#include "client_object.h"
#include "collected.h"
#include "gil_release.h"
#include "hash.h"
#include "leave.h"
#include "module.h"
#include "numbers.h"
#include "strides.h"

namespace cachalot::python {
namespace {

std::vector<std::string> paths_of(const nb::object& given) {
  const bool is_one = PyUnicode_Check(given.ptr()) || PyBytes_Check(given.ptr()) ||
                      nb::hasattr(given, "__fspath__") || PySequence_Check(given.ptr()) == 0;
  if (is_one) return {path(given, "pool")};
  std::vector<std::string> paths;
  for (const nb::handle one : given) paths.push_back(path(one, "pool"));
  return paths;
}

HashAlgorithm parse_hash(const std::string& name) {
  if (name == "xxh3") return HashAlgorithm::kXxh3;
  if (name == "sha256_cbor") return HashAlgorithm::kSha256Cbor;
  if (name == "xxhash_cbor") return HashAlgorithm::kXxhashCbor;
  refuse("hash: '%.40s' is not xxh3, sha256_cbor or xxhash_cbor", name.c_str());
}

RecordedCall parse_call(const std::string& name) {
  if (name == "lookup") return RecordedCall::kLookup;
  if (name == "load") return RecordedCall::kLoad;
  refuse("recorded_call: '%.40s' is not lookup or load", name.c_str());
}

void attach(ClientObject* self, const nb::object& pool, const std::string& model,
            nb::handle geometry, const std::string& salt, const std::string& block_order,
            const std::string& hash, const std::string& python_hash_seed, nb::handle host,
            nb::handle slot, nb::handle copy_threads, nb::handle workers, nb::handle grant_blocks,
            std::optional<bool> checksums, nb::handle keeper_timeout_s, nb::handle recovery_s,
            nb::handle record_requests, const std::string& recorded_call, bool pool_bypasses_caches,
            bool pinned_reads, bool allow_foreign_pool) {
  ClientOptions options;
  options.pool = paths_of(pool);
  options.model = model;
  options.salt = salt;
  if (!nb::isinstance<KvGeometry>(geometry)) refuse_type(geometry, "geometry: ", "a KvGeometry");
  options.geometry = instance_of<KvGeometry>(geometry, "geometry");
  options.block_order = block_order;
  options.hash = parse_hash(hash);
  options.python_hash_seed = python_hash_seed;
  options.host = number(host, "host");
  options.slot = optional_number(slot, "slot");
  options.copy_threads = count(copy_threads, "copy_threads", kMostThreads);
  options.workers = count(workers, "workers", kMostThreads);
  options.grant_blocks = count(grant_blocks, "grant_blocks", kMostGrantBlocks);
  options.checksums = checksums;
  options.keeper_timeout_ns = nanoseconds(seconds(keeper_timeout_s, "keeper_timeout_s"));
  options.recovery_ns = nanoseconds(seconds(recovery_s, "recovery_s"));
  if (!record_requests.is_none())
    options.record_requests = path(record_requests, "record_requests");
  options.recorded_call = parse_call(recorded_call);
  options.pool_bypasses_caches = pool_bypasses_caches;
  options.pinned_reads = pinned_reads;
  options.allow_foreign_pool = allow_foreign_pool;
  Result<Client> client = [&] {
    const GilRelease release;
    return Client::attach(options);
  }();
  new (self) ClientObject(value_of(std::move(client)));
}

// Checks that a cache of this geometry can be in the tensor.
Memory tensor_of(nb::handle object, std::size_t index, const KvGeometry& geometry,
                 std::optional<int> device) {
  const std::string name = "tensor " + std::to_string(index);
  Memory memory = device ? Memory::on_gpu(object, name, *device) : Memory::of(object, name);
  if (memory.is_bare) return memory;
  if (memory.item_bytes != dtype_bytes(geometry.dtype)) {
    refuse("%s: has numbers of %" PRIu64 " bytes (%s), expected %" PRIu64 " (%s)", name.c_str(),
           memory.item_bytes, memory.dtype().c_str(), dtype_bytes(geometry.dtype),
           dtype_name(geometry.dtype));
  }
  if (memory.is_record) {
    refuse("%s: has records of several fields, expected numbers (%s)", name.c_str(),
           dtype_name(geometry.dtype));
  }
  if (memory.is_swapped) {
    refuse("%s: has numbers of %s, expected them in this machine's byte order", name.c_str(),
           memory.dtype().c_str());
  }
  if (!memory.is_contiguous)
    refuse("%s: is not contiguous, expected C order without gaps", name.c_str());
  if (!memory.is_writable)
    refuse("%s: is read-only, expected memory that blocks can be loaded into", name.c_str());
  return memory;
}

CacheObject register_cache(nb::handle self, nb::handle layout, const nb::object& tensors,
                           nb::handle pages, nb::handle page_tokens, nb::handle page_stride_bytes,
                           nb::handle strides, nb::handle device, nb::handle stream) {
  ClientObject& client = client_of(self);
  PagedCache cache;
  if (!strides.is_none()) cache.strides = strides_of(strides);
  if (!cache.strides || !layout.is_none()) cache.layout = text(layout, "layout");
  cache.pages = number(pages, "pages");
  cache.page_tokens = number(page_tokens, "page_tokens");
  cache.page_stride_bytes = whole_number(page_stride_bytes, "page_stride_bytes", ~std::uint64_t{0});
  if (!device.is_none()) {
    cache.cuda_device = static_cast<int>(whole_number(device, "device", INT32_MAX));
  }
  cache.cuda_stream = stream_of(stream).value_or(nullptr);
  std::vector<Memory> held;
  if (tensors.is_none()) refuse_type(tensors, "tensors: ", "an array, or several");
  // An array is one tensor, not a sequence of its rows.
  if (PyObject_CheckBuffer(tensors.ptr()) || nb::hasattr(tensors, "__dlpack__") ||
      nb::hasattr(tensors, "__cuda_array_interface__")) {
    held.push_back(tensor_of(tensors, 0, client.client().geometry(), cache.cuda_device));
  } else {
    for (const nb::handle tensor : tensors) {
      held.push_back(tensor_of(tensor, held.size(), client.client().geometry(), cache.cuda_device));
    }
  }
  for (const Memory& tensor : held) cache.tensors.push_back({tensor.data, tensor.bytes()});
  const CacheId id = client.register_cache(cache, std::move(held));
  return {nb::borrow(self), &client, id};
}

std::size_t lookup(ClientObject& self, nb::handle hashes) {
  const Hashes names(hashes);
  return value_of(self.call([&](Client& client) { return client.lookup(names.get()); }));
}

std::size_t load(ClientObject& self, const CacheObject& cache, nb::handle hashes, nb::handle pages,
                 nb::handle first_layer, nb::handle layers, nb::handle timeout, nb::handle stream) {
  const CacheId id = id_of(self, cache);
  const Hashes names(hashes);
  const std::vector<PageId> to = Numbers::copy(pages, "pages");
  const CopyOptions options = copy_options(first_layer, layers, timeout, stream);
  return value_of(
      self.call([&](Client& client) { return client.load(id, names.get(), to, options); }));
}

std::vector<TokenRange> ranges_of(nb::handle object, std::size_t block) {
  std::vector<TokenRange> ranges;
  if (object.is_none()) return ranges;
  for (const nb::handle pair : object) {
    const std::vector<std::uint32_t> ends = Numbers::copy(pair, "tokens");
    if (ends.size() != 2) {
      refuse(
          "tokens: a range of block %zu has %zu numbers, expected 2: the first, and the one behind "
          "the last",
          block, ends.size());
    }
    ranges.push_back({ends[0], ends[1]});
  }
  return ranges;
}

std::size_t load_tokens(ClientObject& self, const CacheObject& cache, nb::handle hashes,
                        nb::handle pages, nb::handle tokens, nb::handle first_layer,
                        nb::handle layers, nb::handle timeout, nb::handle stream) {
  const CacheId id = id_of(self, cache);
  const Hashes names(hashes);
  const std::vector<PageId> to = Numbers::copy(pages, "pages");
  std::vector<std::vector<TokenRange>> ranges;
  if (tokens.is_none()) refuse_type(tokens, "tokens: ", "the ranges of each block");
  for (const nb::handle block : tokens) ranges.push_back(ranges_of(block, ranges.size()));
  if (ranges.size() != names.get().size()) {
    refuse("tokens: of %zu blocks, expected those of %zu", ranges.size(), names.get().size());
  }
  const std::vector<std::span<const TokenRange>> spans(ranges.begin(), ranges.end());
  const CopyOptions options = copy_options(first_layer, layers, timeout, stream);
  return value_of(self.call(
      [&](Client& client) { return client.load_tokens(id, names.get(), to, spans, options); }));
}

Stored store(ClientObject& self, const CacheObject& cache, nb::handle hashes, nb::handle pages,
             nb::handle parent, nb::handle timeout, nb::handle stream) {
  const CacheId id = id_of(self, cache);
  const Hashes names(hashes);
  const std::vector<PageId> from = Numbers::copy(pages, "pages");
  const std::optional<BlockHash> before = parent_of(parent);
  const CopyOptions options = copy_options(timeout, stream);
  return value_of(self.call([&](Client& client) {
    return client.store(id, before ? &*before : nullptr, names.get(), from, options);
  }));
}

BlockHashes hash_tokens(ClientObject& self, nb::handle tokens) {
  const Numbers numbers(tokens, "tokens");
  const GilRelease release;
  auto hashes =
      std::make_shared<const std::vector<BlockHash>>(self.client().hash_tokens(numbers.get()));
  const std::size_t count = hashes->size();
  return {std::move(hashes), 0, count};
}

struct Counter {
  const char* name;
  std::uint64_t Statistics::*member;
};
constexpr Counter kCounters[] = {
    {"lookups", &Statistics::lookups},
    {"looked_up_blocks", &Statistics::looked_up_blocks},
    {"hit_blocks", &Statistics::hit_blocks},
    {"loads", &Statistics::loads},
    {"loaded_blocks", &Statistics::loaded_blocks},
    {"loaded_bytes", &Statistics::loaded_bytes},
    {"stores", &Statistics::stores},
    {"stored_blocks", &Statistics::stored_blocks},
    {"stored_bytes", &Statistics::stored_bytes},
    {"duplicate_blocks", &Statistics::duplicate_blocks},
    {"stale_blocks", &Statistics::stale_blocks},
    {"damaged_blocks", &Statistics::damaged_blocks},
    {"reattachments", &Statistics::reattachments},
};

void add_results(nb::module_& module) {
  nb::class_<Stored>(module, "Stored", "What became of a store.")
      .def_ro("blocks", &Stored::blocks, "Leading blocks that are in the pool now.")
      .def_ro("written", &Stored::written, "Of these, how many this call wrote.")
      .def_prop_ro(
          "reason",
          [](const Stored& stored) -> std::optional<std::string> {
            if (!stored.reason) return std::nullopt;
            return code_name(*stored.reason);
          },
          "Why not all: 'no_space', or 'refused': the parent is not in the pool.")
      .def("__repr__", [](const Stored& stored) {
        return "Stored(blocks=" + std::to_string(stored.blocks) +
               ", written=" + std::to_string(stored.written) + ", reason=" +
               (stored.reason ? "'" + std::string(code_name(*stored.reason)) + "'" : "None") + ")";
      });

  nb::class_<Statistics> statistics(module, "Statistics", "What a client did since it attached.");
  for (const Counter& counter : kCounters) statistics.def_ro(counter.name, counter.member);
  statistics
      .def(
          "as_dict",
          [](const Statistics& values) {
            nb::dict all;
            for (const Counter& counter : kCounters) all[counter.name] = values.*counter.member;
            return all;
          },
          nb::sig("def as_dict(self) -> dict[str, int]"))
      .def("__repr__", [](const Statistics& values) {
        std::string text = "Statistics(";
        for (const Counter& counter : kCounters) {
          text += (text.back() == '(' ? "" : ", ") + std::string(counter.name) + "=" +
                  std::to_string(values.*counter.member);
        }
        return text + ")";
      });

  nb::class_<CacheObject>(module, "Cache", nb::type_slots(kTraverse<CacheObject>),
                          "An engine's paged cache, as a client knows it.")
      .def_prop_ro("number",
                   [](const CacheObject& cache) { return static_cast<std::uint32_t>(cache.id); })
      .def_prop_ro(
          "client", [](const CacheObject& cache) { return cache.owner; },
          nb::sig("def client(self) -> Client"));
}

int clear_client(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<ClientObject>(self)->collect();
  return 0;
}

PyType_Slot kClientSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<ClientObject>)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_client)},
                              {0, nullptr}};

}  // namespace

void add_client(nb::module_& module) {
  nb::class_<ClientObject> client(
      module, "Client", nb::type_slots(kClientSlots),
      "Moves KV blocks between an engine's paged cache and a pool that many engines share.\n\n"
      "    with Client(pool='/dev/shm/kv', model='Qwen3-32B@9216db57', geometry=geometry) as "
      "client:\n"
      "        cache = client.register_cache('vllm_kbnhc', tensors, pages=4096)\n"
      "        hashes = client.hash_tokens(prompt)\n"
      "        hit = client.load(cache, hashes, pages)      # pool -> pages\n"
      "        client.store(cache, hashes, pages)           # pages -> pool\n\n"
      "All threads may call at once; no call that copies or waits holds the GIL.");
  add_results(module);
  client
      .def(
          "__init__", &attach, nb::kw_only(), nb::arg("pool"), nb::arg("model"),
          nb::arg("geometry").none(), nb::arg("salt") = "", nb::arg("block_order") = "layer_first",
          nb::arg("hash") = "xxh3", nb::arg("python_hash_seed") = "", nb::arg("host") = 0,
          nb::arg("slot") = nb::none(), nb::arg("copy_threads") = 1, nb::arg("workers") = 1,
          nb::arg("grant_blocks") = 64, nb::arg("checksums") = nb::none(),
          nb::arg("keeper_timeout_s").none() = 5.0, nb::arg("recovery_s").none() = 2.0,
          nb::arg("record_requests") = nb::none(), nb::arg("recorded_call") = "lookup",
          nb::arg("pool_bypasses_caches") = false, nb::arg("pinned_reads") = false,
          nb::arg("allow_foreign_pool") = false,
          nb::sig("def __init__(self, *, pool: cachalot.types.Paths, model: str, geometry: "
                  "KvGeometry, salt: str = '', "
                  "block_order: str = 'layer_first', hash: str = 'xxh3', python_hash_seed: str = "
                  "'', host: int = 0, "
                  "slot: int | None = None, copy_threads: int = 1, workers: int = 1, "
                  "grant_blocks: int = 64, "
                  "checksums: bool | None = None, keeper_timeout_s: float = 5.0, recovery_s: "
                  "float = 2.0, record_requests: str | os.PathLike[str] | None = None, "
                  "recorded_call: str = 'lookup', pool_bypasses_caches: bool = False, "
                  "pinned_reads: bool = False, allow_foreign_pool: bool = False) -> None"),
          "Attaches. Blocks of clients whose model, salt, geometry, block order or hash differ "
          "are never handed out.\n\n"
          "pool: its path, or those of all its devices in order. model: the weights and their "
          "revision.\n"
          "salt: adapters, quantisation, a tenant's secret. block_order: of a block in the pool. "
          "hash: 'xxh3',\n"
          "'sha256_cbor' or 'xxhash_cbor' (vLLM's two, with python_hash_seed). host: this "
          "machine's number in the\n"
          "pool. slot: of the client table, None: a free one. copy_threads: that share the copies "
          "of one call, workers:\n"
          "for calls that do not wait, grant_blocks: to hold in advance, each 1 to 256. checksums: "
          "None: in\n"
          "noncoherent pools. keeper_timeout_s: of any wait for the keeper's answer, recovery_s: "
          "for a next keeper;\n"
          "both end with a call's own timeout. record_requests: a file that requests are recorded "
          "in, hashes only;\n"
          "each 'lookup', or each 'load', stands for one (recorded_call). pool_bypasses_caches: of "
          "a "
          "noncoherent pool\n"
          "with GPUs: its memory is mapped past the host's caches, and GPUs' writes do not go into "
          "them. pinned_reads: begin_load(pinned=True) will be used.\n"
          "allow_foreign_pool: also a pool of another user than this one and root, or one that "
          "every "
          "user may write to.")
      .def("detach", &ClientObject::detach,
           "Waits for the calls under way, every AsyncCall among them unless it is cancelled, "
           "detaches, and lets\n"
           "go of all memory and of its slot, however long this object is kept. A second time does "
           "nothing.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Client"))
      .def(
          "__exit__",
          [](ClientObject& self, nb::args exception) {
            // A forked child also runs the end of its parent's `with`
            if (self.is_forked()) return;
            leave(exception, [&] { self.detach(); });
          },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def_prop_ro("geometry", [](const ClientObject& self) { return self.client().geometry(); })
      .def_prop_ro("block_bytes",
                   [](const ClientObject& self) { return self.client().block_bytes(); })
      .def_prop_ro("statistics",
                   [](const ClientObject& self) { return self.client().statistics(); })
      .def("hash_tokens", &hash_tokens, nb::arg("tokens").none(),
           nb::sig("def hash_tokens(self, tokens: cachalot.types.Tokens) -> BlockHashes"),
           "The hashes of all whole blocks of a prompt, from its first token on.")
      .def("register_cache", &register_cache, nb::arg("layout").none(), nb::arg("tensors").none(),
           nb::arg("pages").none(), nb::arg("page_tokens") = 0, nb::arg("page_stride_bytes") = 0,
           nb::kw_only(), nb::arg("strides") = nb::none(), nb::arg("device") = nb::none(),
           nb::arg("stream") = nb::none(),
           nb::sig("def register_cache(self, layout: str | None, tensors: cachalot.types.Memory | "
                   "collections.abc.Iterable[cachalot.types.Memory], "
                   "pages: int, page_tokens: int = 0, page_stride_bytes: int = 0, *, "
                   "strides: tuple[PartStrides, PartStrides] | list[PartStrides] | None = None, "
                   "device: int | None = None, stream: cachalot.types.Stream = None) -> Cache"),
           "Memory of the engine that pages are in, in a layout of layout_names(): writable, "
           "C-contiguous,\n"
           "numbers of the dtype's size. It is kept alive until unregister_cache() or detach().\n\n"
           "strides: where keys and values lie, or a latent and its rope part, if no layout "
           "describes it (layout is None).\n"
           "device: the GPU that the tensors are on, by CUDA's number of it; they are then arrays "
           "by "
           "DLPack or\n"
           "__cuda_array_interface__ (torch, CuPy), or pairs (address, bytes). stream: where its "
           "copies go, if a\n"
           "call names no other; None: the legacy default stream.")
      .def(
          "unregister_cache",
          [](ClientObject& self, const CacheObject& cache) {
            self.unregister_cache(id_of(self, cache));
          },
          nb::arg("cache"),
          "Waits for the calls that use it. BusyError: a LayerLoad or LayerStore of it is open. "
          "IoError: its GPU failed\n"
          "in a copy, which may write to the tensors until the process ends: they are kept until "
          "then, "
          "but for those\n"
          "that were given as an address, which their owner has to keep.")
      .def("lookup", &lookup, nb::arg("hashes").none(),
           nb::sig("def lookup(self, hashes: cachalot.types.Hashes) -> int"),
           "How many leading blocks are in the pool.")
      .def("load", &load, nb::arg("cache"), nb::arg("hashes").none(), nb::arg("pages").none(),
           nb::kw_only(), nb::arg("first_layer") = 0, nb::arg("layers") = nb::none(),
           nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
           nb::sig("def load(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, "
                   "first_layer: int = 0, layers: int | None = None, timeout: float | None = None, "
                   "stream: cachalot.types.Stream = None) -> int"),
           "Copies the longest prefix that is in the pool into the engine's pages, block i to "
           "pages[i].\n"
           "Returns how many leading blocks are loaded; the pages behind may have been written "
           "over.\n\n"
           "pages: all different; where a block is several pages, so many for each block. "
           "first_layer, layers: only\n"
           "these. timeout: seconds for the whole call, None: as long as it takes; TimeoutError, "
           "whose "
           "`detail` is how\n"
           "many leading blocks were read and validated in time: they need not be computed. "
           "stream: of a GPU's\n"
           "cache, what the copies come behind; None: the cache's.")
      .def("load_tokens", &load_tokens, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::arg("tokens").none(), nb::kw_only(),
           nb::arg("first_layer") = 0, nb::arg("layers") = nb::none(),
           nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
           nb::sig("def load_tokens(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, "
                   "tokens: collections.abc.Iterable[cachalot.types.TokenRanges], *, first_layer: "
                   "int = 0, "
                   "layers: int | None = None, timeout: float | None = None, "
                   "stream: cachalot.types.Stream = None) -> int"),
           "Only some tokens of each block, for sparse attention. Not covered by a checksum.")
      .def(
          "store", &store, nb::arg("cache"), nb::arg("hashes").none(), nb::arg("pages").none(),
          nb::kw_only(), nb::arg("parent") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("stream") = nb::none(),
          nb::sig("def store(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                  "cachalot.types.Pages, *, "
                  "parent: cachalot.types.Parent = None, timeout: float | None = None, "
                  "stream: cachalot.types.Stream = None) -> Stored"),
          "Copies blocks from the engine's pages into the pool and publishes them: a chain whose "
          "first block\n"
          "follows `parent`, or starts a prompt. What is there already is not copied.\n\n"
          "timeout: seconds for the whole call, whatever it waits for, also a keeper that is gone; "
          "None: as long as\n"
          "keeper_timeout_s and recovery_s allow. Returns how many leading blocks are in the pool, "
          "and why not all.")
      .def("__repr__", [](const ClientObject& self) {
        return "Client(" + self.client().geometry().fingerprint() + ")";
      });
  add_objects(client);
}

}  // namespace cachalot::python
