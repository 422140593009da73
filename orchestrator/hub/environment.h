// What the environment says about the hub, by the variables of the Python library huggingface_hub.
#pragma once

#include <string>

namespace orrery::hub {

struct HubEnvironment {
  // $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub,
  // ~/.cache/huggingface/hub: the first that is set.
  std::string cache;
  std::string endpoint = "https://huggingface.co";  // $HF_ENDPOINT, without a slash at the end
  // $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN, the file $HF_TOKEN_PATH or $HF_HOME/token. Never printed.
  std::string token;
  bool offline = false;  // $HF_HUB_OFFLINE is 1, ON, YES or TRUE
};

HubEnvironment ReadHubEnvironment();

}  // namespace orrery::hub
