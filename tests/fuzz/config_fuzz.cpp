// Texts that people write. First byte: F, the flag file of `cachalot serve`; else, values: sizes, URIs, lists, keys.
// What is refused has a message; what is accepted is within its limits.
#include <string>

#include "base/byte_size.h"
#include "base/check.h"
#include "base/uri.h"
#include "block_hash/block_hash.h"
#include "input.h"
#include "memory_file.h"
#include "os/shared_file.h"
#include "serve_flags.h"
#include "storage/object.h"
#include "values.h"

namespace cachalot::apps {
namespace {

template <class T>
bool has_value(const Result<T>& result) {
  CACHALOT_CHECK(result.ok() || result.error().message[0] != '\0');
  return result.ok();
}

void try_flag_file(const std::string& text) {
  const fuzz::MemoryFile file(text);
  ServeFlags flags;
  LooseCommand command("serve");
  add_serve_flags(command.command(), flags);
  if (!has_value(command.parse({"--config", file.path()}))) return;
  (void)has_value(flags.keeper_options());
  LooseCommand again("serve");
  flags.arguments = {"--config", file.path()};
  CACHALOT_CHECK(read_again(flags, again).ok());
}

void try_uri(const std::string& text) {
  const Result<base::Uri> uri = base::Uri::parse("storage", text);
  if (!has_value(uri)) return;
  CACHALOT_CHECK(uri->shown.size() <= 130);
  for (const auto& [name, value] : uri->parameters) {
    CACHALOT_CHECK(uri->find(name) != nullptr);
    (void)has_value(uri->flag(name, false));
    const Result<std::uint64_t> number = uri->number(name, 7, 5, 1000);
    if (has_value(number)) CACHALOT_CHECK(*number >= 5 && *number <= 1000);
  }
  (void)has_value(uri->check_parameters("cluster sync"));
  (void)has_value(uri->path());
}

void try_values(const std::string& text) {
  const Result<std::uint64_t> size = base::parse_byte_size("--size", text);
  if (has_value(size)) {
    CACHALOT_CHECK(*size >> 63 == 0);
    (void)bytes_text(*size);
  }
  (void)has_value(parse_blocks("--blocks", text));
  (void)has_value(parse_blocks_or_inf("--blocks", text));
  (void)has_value(split_list("--list", {text, "b"}));
  std::string value = text;
  (void)number(3, 50).problem_of(value);
  (void)decimal(0.5, 7).problem_of(value);
  const Result<storage::ObjectKey> key = storage::parse_object_key(text);
  if (has_value(key)) CACHALOT_CHECK(*storage::parse_object_key(storage::to_text(*key)) == *key);
  (void)has_value(os::parse_file_part(text));
  (void)has_value(base::decode_percent(text));
  if (text.find('\0') == std::string::npos) {
    for (const bool keeps_slash : {false, true})
      CACHALOT_CHECK(*base::decode_percent(base::encode_percent(text, keeps_slash)) == text);
  }
  try_uri(text);
}

void try_input(fuzz::Input input) {
  const bool is_file = input.take<char>() == 'F';
  const std::string text = input.text();
  is_file ? try_flag_file(text) : try_values(text);
}

}  // namespace
}  // namespace cachalot::apps

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  cachalot::apps::try_input({data, bytes});
  return 0;
}
