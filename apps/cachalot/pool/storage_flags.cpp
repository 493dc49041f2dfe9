#include "storage_flags.h"

#include <cstdlib>

#include "values.h"

namespace cachalot::apps {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string all_forms() {
  std::string text;
  for (const storage::BackendKind& kind : storage::backend_kinds()) {
    if (!text.empty()) text += ", ";
    text += kind.form;
  }
  return text;
}

}  // namespace

Result<storage::Limits> StorageFlags::limits() const {
  storage::Limits limits;
  if (!capacity.empty()) {
    CACHALOT_TRY_ASSIGN(limits.bytes, parse_bytes("--storage-capacity", capacity));
  }
  if (!capacity_blocks.empty()) {
    CACHALOT_TRY_ASSIGN(limits.objects, parse_blocks("--storage-capacity-blocks", capacity_blocks));
  }
  if (limits.bytes != 0 && limits.objects != 0) return limits;
  return Error::make(Code::kInvalidArgument,
                     "%s: 0, expected a storage that holds a block at least",
                     limits.bytes == 0 ? "--storage-capacity" : "--storage-capacity-blocks");
}

Status StorageFlags::check_holds_a_block(std::uint64_t block_bytes) const {
  CACHALOT_TRY_ASSIGN(const storage::Limits limits, this->limits());
  if (uris.empty() || limits.bytes >= block_bytes) return {};
  return Error::make(Code::kInvalidArgument,
                     "--storage-capacity: %.40s is less than one block, expected at least %llu "
                     "bytes",
                     capacity.c_str(), static_cast<unsigned long long>(block_bytes));
}

Result<std::uint64_t> StorageFlags::write_bytes_per_day() const {
  if (write_budget.empty()) return std::uint64_t{0};
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes,
                      parse_bytes("--storage-write-budget", write_budget));
  if (bytes != 0) return bytes;
  return Error::make(Code::kInvalidArgument,
                     "--storage-write-budget: 0, expected the bytes of a day, above 0");
}

Result<node::WritePolicy> StorageFlags::policy() const {
  return node::parse_write_policy(write_policy);
}

storage::BackendSecrets StorageFlags::secrets() const {
  std::string profile_file = environment("AWS_SHARED_CREDENTIALS_FILE");
  if (profile_file.empty()) profile_file = environment("HOME") + "/.aws/credentials";
  return {.s3_access_key = environment("AWS_ACCESS_KEY_ID"),
          .s3_secret_key = environment("AWS_SECRET_ACCESS_KEY"),
          .s3_session_token = environment("AWS_SESSION_TOKEN"),
          .redis_password = environment("CACHALOT_REDIS_PASSWORD"),
          .key_file = key_file,
          .s3_profile_file = profile_file,
          .s3_profile = environment("AWS_PROFILE"),
          .s3_web_token_file = environment("AWS_WEB_IDENTITY_TOKEN_FILE"),
          .s3_role_arn = environment("AWS_ROLE_ARN"),
          .s3_sts_endpoint = environment("AWS_ENDPOINT_URL_STS"),
          .s3_metadata_endpoint = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT")};
}

void add_storage_flags(Command& command, StorageFlags& flags) {
  constexpr const char* kGroup = "Storage";
  Flag* const uri =
      command
          .add_option(
              "--storage", flags.uris,
              "keep blocks in storage behind the pool, so that eviction does not lose them; may be "
              "given several times, then each limit is that of each: " +
                  all_forms())
          ->type_name("URI")
          ->expected(1)
          ->take_all()
          ->group(kGroup);
  const auto add = [&](const char* name, std::string& value, const char* help, const char* type) {
    return command.add_option(name, value, help)->type_name(type)->group(kGroup)->needs(uri);
  };
  Flag* const bytes = add("--storage-capacity", flags.capacity,
                          "bytes of blocks in storage (default: no limit)", "SIZE");
  add("--storage-capacity-blocks", flags.capacity_blocks,
      "the same as a number of blocks, instead of --storage-capacity", "N")
      ->excludes(bytes);
  add("--storage-write-budget", flags.write_budget,
      "bytes of blocks that are written a day, for a disk that wears out (default: no limit)",
      "SIZE");
  add("--write-policy", flags.write_policy,
      "through: store every block; selective: blocks that were used twice since; back: the coldest "
      "blocks "
      "of a nearly full pool",
      "through|selective|back")
      ->check(one_of({"through", "selective", "back"}))
      ->capture_default_str();
  add("--storage-key-file", flags.key_file,
      "encrypt with AES-256-GCM; the file has 32 bytes, or 64 hexadecimal digits", "FILE");
}

}  // namespace cachalot::apps
