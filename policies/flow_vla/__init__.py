"""flow_vla: a small vision-language-action policy that draws action chunks by flow matching."""
