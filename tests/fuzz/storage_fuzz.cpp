// What storage gives back. First byte: 0, a value of bytes; 1, one whose head is sealed again; 2, an encrypted object that
// was changed; 3, calls of the catalogue.
#include "base/check.h"
#include "input.h"
#include "storage/catalogue.h"
#include "storage/encrypted.h"
#include "storage/value.h"
#include "testing/storage/chains.h"
#include "testing/storage/fake_backend.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kPayload = 96;

// A value into room of two pieces; whole and in parts it is the same.
void try_value(fuzz::Input& input, bool seals) {
  const std::uint64_t first = input.below(kPayload + 1), most = 1 + input.below(200);
  ObjectHead head = Chain(1, 1, kPayload, 3).head(0);
  const ObjectKey key = head.key;
  input.change(head);
  const auto rest = input.rest();
  std::vector<std::byte> body(rest.begin(), rest.end());
  if (seals) {
    const Bytes piece(body);
    head.seal = seal_of(head, {&piece, 1});
  }
  std::vector<std::byte> value(kHeadBytes);
  std::memcpy(value.data(), &head, kHeadBytes);
  value.insert(value.end(), body.begin(), body.end());
  (void)head_of_value(value);
  (void)head_of_value(std::span(value).first(most % kHeadBytes));

  std::byte whole_room[kPayload] = {}, room[kPayload] = {};
  const Room whole_pieces[] = {whole_room},
             pieces[] = {{room, first}, {room + first, kPayload - first}};
  Get whole{key, whole_pieces}, get{key, pieces};
  take_value(value, whole);
  ValueSink sink(get);
  sink.feed(std::span(value).first(value.size() / 2));
  sink.restart();
  for (std::size_t at = 0; at < value.size(); at += most) {
    if (!sink.feed(std::span(value).subspan(at, std::min<std::size_t>(most, value.size() - at))))
      break;
  }
  sink.finish();
  CACHALOT_CHECK(whole.status.ok() == get.status.ok());
  if (!get.status) return;
  CACHALOT_CHECK(get.head.key == key && get.tokens == whole.tokens);
  CACHALOT_CHECK(std::memcmp(room, whole_room, kPayload) == 0);
  CACHALOT_CHECK(get.head.payload_bytes == kPayload && get.tokens.size() == get.head.tokens);
}

void try_encrypted(fuzz::Input& input) {
  FakeBackend::Disk disk;
  Chain chain(1, 1, kPayload, 3);
  const auto backend = make_encrypted(std::make_unique<FakeBackend>(disk), StorageKey{{1, 2, 3}});
  CACHALOT_CHECK(put_all(*backend, chain) == 1);
  bool is_changed = false;
  disk.on_get = [&](FakeBackend::Object& object) {
    const auto change = [&](void* at, std::size_t bytes) {
      auto* const to = static_cast<std::byte*>(at);
      for (std::size_t i = 0; i < bytes; ++i) {
        const auto byte = input.take<std::byte>();
        to[i] ^= byte;
        is_changed |= byte != std::byte{};
      }
    };
    const std::uint64_t seal = object.head.seal;
    const std::uint32_t reserved = object.head.reserved;
    change(&object.head, sizeof object.head);
    change(object.body.data(), object.body.size());
    // These two do not count.
    object.head.seal = seal, object.head.reserved = reserved;
  };
  const bool is_right = get_all(*backend, chain)[0];
  CACHALOT_CHECK(is_right || is_changed);
}

void try_catalogue(fuzz::Input& input) {
  Catalogue catalogue({.bytes = 2000, .objects = 12});
  std::uint64_t reserved_bytes = 0, reserved_objects = 0;
  while (!input.is_empty()) {
    const std::uint32_t call = input.below(11);
    ObjectHead head;
    head.key = {{1 + input.below(2), 0}, {1 + input.below(30), 0}};
    head.parent = {input.below(31), 0};
    head.payload_bytes = 1 + input.take<std::uint16_t>() % 600;
    bool fits = false;
    switch (call) {
      case 0:
      case 1:
        catalogue.add(head);
        break;
      case 2:
        catalogue.add_detached(head);
        break;
      case 3:
        if (reserved_bytes != 0) continue;
        catalogue.take_victims(head.body_bytes(), 1, head.is_root() ? nullptr : &head.key, fits);
        if (fits) reserved_bytes = head.body_bytes(), reserved_objects = 1;
        break;
      case 4:
        if (reserved_bytes == 0) continue;
        head.payload_bytes = reserved_bytes;
        catalogue.add_reserved(head);
        reserved_bytes = reserved_objects = 0;
        break;
      case 5:
        catalogue.release(reserved_bytes, reserved_objects);
        reserved_bytes = reserved_objects = 0;
        break;
      case 6:
        catalogue.touch(head.key);
        break;
      case 7:
        catalogue.remove(head.key, head.is_root() ? ~std::uint64_t{0} : catalogue.additions() / 2);
        break;
      case 8:
        catalogue.limit_bytes(head.payload_bytes);
        break;
      case 9:
        catalogue.take_coldest(head.payload_bytes, &head.key);
        break;
      case 10:
        catalogue.forget_coldest(head.payload_bytes % 20);
        break;
    }
    CACHALOT_CHECK(catalogue.is_valid());
    CACHALOT_CHECK(catalogue.keys().size() == catalogue.objects());
  }
}

void try_input(fuzz::Input input) {
  switch (input.below(4)) {
    case 0:
      return try_value(input, false);
    case 1:
      return try_value(input, true);
    case 2:
      return try_encrypted(input);
    case 3:
      return try_catalogue(input);
  }
}

}  // namespace
}  // namespace cachalot::storage

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  cachalot::storage::try_input({data, bytes});
  return 0;
}
