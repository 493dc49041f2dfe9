#include "model.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

namespace cachalot::llama {
namespace {

std::vector<llama_chat_message> as_chat(const std::vector<Message>& messages) {
  std::vector<llama_chat_message> chat;
  for (const Message& message : messages) {
    chat.push_back({message.role.c_str(), message.content.c_str()});
  }
  return chat;
}

// The length of the text, or a negative number: libllama does not know the template.
std::int32_t apply(const std::string& chat_template, const std::vector<Message>& messages,
                   std::string& text) {
  const std::vector<llama_chat_message> chat = as_chat(messages);
  return llama_chat_apply_template(chat_template.c_str(), chat.data(), chat.size(),
                                   /*add_ass=*/true, text.data(),
                                   static_cast<std::int32_t>(text.size()));
}

bool is_known(const std::string& chat_template) {
  std::string text(1024, '\0');
  return apply(chat_template, {{"user", "?"}}, text) >= 0;
}

std::string piece_of(const llama_vocab* vocabulary, Token token, bool special) {
  std::string bytes(32, '\0');
  for (;;) {
    const std::int32_t length = llama_token_to_piece(
        vocabulary, token, bytes.data(), static_cast<std::int32_t>(bytes.size()), 0, special);
    if (length >= 0) {
      bytes.resize(static_cast<std::size_t>(length));
      return bytes;
    }
    bytes.resize(static_cast<std::size_t>(-length));
  }
}

// How much of a text one token can stand for: the longest there is, or a character that is unknown.
std::size_t longest_piece(const llama_vocab* vocabulary) {
  std::size_t longest = 4;
  for (Token token = 0; token < llama_vocab_n_tokens(vocabulary); ++token) {
    longest = std::max(longest, piece_of(vocabulary, token, /*special=*/true).size());
  }
  return longest;
}

// The library says only that it failed.
Status check_readable(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return Error::from_errno(errno, "%.150s: opening", path.c_str());
  char magic[4] = {};
  const bool is_gguf = std::fread(magic, 1, 4, file) == 4 && std::string(magic, 4) == "GGUF";
  std::fclose(file);
  if (is_gguf) return {};
  return Error::make(Code::kBadInput, "%.150s: not a model, expected a GGUF file", path.c_str());
}

}  // namespace

Model::Model(llama_model* model, std::string chat_template)
    : model_(model),
      vocabulary_(llama_model_get_vocab(model)),
      chat_template_(std::move(chat_template)),
      most_token_bytes_(longest_piece(vocabulary_)) {}

Result<Model> Model::load(const std::string& path, const std::string& chat_template,
                          const llama_model_params& params) {
  CACHALOT_TRY(check_readable(path));
  if (!chat_template.empty() && !is_known(chat_template)) {
    return Error::make(Code::kInvalidArgument,
                       "--chat-template: libllama does not know \"%.80s\", expected a name such as "
                       "chatml, llama3 or gemma",
                       chat_template.c_str());
  }
  llama_model* const model = llama_model_load_from_file(path.c_str(), params);
  if (model == nullptr) {
    return Error::make(Code::kBadInput, "%.150s: libllama cannot read this model", path.c_str());
  }
  const char* const own = llama_model_chat_template(model, nullptr);
  Model loaded(model, !chat_template.empty() ? chat_template : own == nullptr ? "" : own);
  if (!llama_model_has_decoder(model) || llama_model_has_encoder(model)) {
    return Error::make(Code::kUnsupported,
                       "%.150s: the model has an encoder, expected a decoder-only model",
                       path.c_str());
  }
  return loaded;
}

std::uint32_t Model::trained_context_tokens() const {
  return static_cast<std::uint32_t>(llama_model_n_ctx_train(model_.get()));
}

bool Model::keeps_all_tokens() const {
  return !llama_model_is_recurrent(model_.get()) && !llama_model_is_hybrid(model_.get()) &&
         llama_model_n_swa(model_.get()) == 0;
}

std::optional<std::uint64_t> Model::shape_of(const char* name) const {
  char architecture[64] = {}, value[32] = {};
  if (llama_model_meta_val_str(model_.get(), "general.architecture", architecture,
                               sizeof architecture) <= 0) {
    return {};
  }
  const std::string key = std::string(architecture) + "." + name;
  if (llama_model_meta_val_str(model_.get(), key.c_str(), value, sizeof value) <= 0) return {};
  std::uint64_t number = 0;
  const char* const end = value + std::strlen(value);
  const auto [stop, error] = std::from_chars(value, end, number);
  if (error != std::errc() || stop != end) return {};
  return number;
}

std::uint64_t Model::kv_bytes_per_token(ggml_type type) const {
  const llama_model* const model = model_.get();
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) return 0;
  const auto number = [](std::int32_t value) {
    return static_cast<std::uint64_t>(std::max(0, value));
  };
  const std::uint64_t heads = std::max(std::uint64_t{1}, number(llama_model_n_head(model)));
  const std::uint64_t head = number(llama_model_n_embd(model)) / heads;
  std::uint64_t numbers = shape_of("attention.key_length").value_or(head);
  // Where V is a part of K it is not stored (multi-head latent attention).
  if (!shape_of("attention.kv_lora_rank"))
    numbers += shape_of("attention.value_length").value_or(head);
  numbers *= number(llama_model_n_head_kv(model)) * number(llama_model_n_layer(model));
  return numbers / static_cast<std::uint64_t>(ggml_blck_size(type)) * ggml_type_size(type);
}

Result<std::string> Model::text_of(const std::vector<Message>& messages) const {
  if (chat_template_.empty()) {
    return Error::make(Code::kUnsupported,
                       "this model has no chat template; ask for a completion, or start the server "
                       "with --chat-template NAME");
  }
  std::string text(1024, '\0');
  for (;;) {
    const std::int32_t length = apply(chat_template_, messages, text);
    if (length < 0) {
      return Error::make(Code::kUnsupported,
                         "libllama does not know this model's chat template; ask for a completion, "
                         "or start the server with --chat-template NAME");
    }
    const bool fits = static_cast<std::size_t>(length) <= text.size();
    text.resize(static_cast<std::size_t>(length));
    if (fits) return text;
  }
}

Result<std::vector<Token>> Model::tokenised(const std::string& text, std::size_t most) const {
  if (text.size() / most_token_bytes_ > most) {
    return Error::make(Code::kNoSpace,
                       "the prompt has %zu bytes, more than %zu tokens: a token of this model has "
                       "at most %zu bytes",
                       text.size(), most, most_token_bytes_);
  }
  // A token for each byte, and what a vocabulary adds at both ends.
  std::vector<Token> tokens(text.size() + 8);
  if (tokens.size() > std::numeric_limits<std::int32_t>::max()) {
    return Error::make(Code::kInvalidArgument, "the prompt has %zu bytes", text.size());
  }
  const std::int32_t count =
      llama_tokenize(vocabulary_, text.data(), static_cast<std::int32_t>(text.size()),
                     tokens.data(), static_cast<std::int32_t>(tokens.size()),
                     /*add_special=*/true, /*parse_special=*/true);
  if (count < 0) {
    return Error::make(Code::kInternal, "libllama returned %d tokens for %zu bytes", -count,
                       text.size());
  }
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

Result<std::vector<Token>> Model::tokens_of(const Request::Prompt& prompt, std::size_t most) const {
  std::vector<Token> tokens;
  if (const auto* given = std::get_if<std::vector<Token>>(&prompt)) {
    const std::int32_t known = llama_vocab_n_tokens(vocabulary_);
    for (const Token token : *given) {
      if (token < 0 || token >= known) {
        return Error::make(Code::kInvalidArgument, "prompt has token %d, expected 0 to %d", token,
                           known - 1);
      }
    }
    tokens = *given;
  } else if (const auto* text = std::get_if<std::string>(&prompt)) {
    CACHALOT_TRY_ASSIGN(tokens, tokenised(*text, most));
  } else {
    CACHALOT_TRY_ASSIGN(const std::string turns, text_of(std::get<std::vector<Message>>(prompt)));
    CACHALOT_TRY_ASSIGN(tokens, tokenised(turns, most));
  }
  if (tokens.empty()) return Error::make(Code::kInvalidArgument, "the prompt is empty");
  return tokens;
}

std::string Model::bytes_of(Token token) const {
  return piece_of(vocabulary_, token, /*special=*/false);
}

}  // namespace cachalot::llama
