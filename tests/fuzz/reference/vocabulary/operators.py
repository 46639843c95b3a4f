"""Operators of tensors that keep the shape of `x`: what the other idioms are joined by."""

TEXT = """
== arithmetic
--
t§ = $T «+|-|*» $F
== with a number
--
t§ = $T «+|*» $N
== two tensors
--
t§ = $T «+|-|*» $T
== pointwise method
--
t§ = $T.«sin|cos|tanh|relu|abs|neg|sigmoid|square|floor|clone»()
== pointwise function
--
t§ = torch.«sin|cos|tanh|relu|sigmoid|exp2|sign»($T * 0.5)
== product
--
t§ = $T @ W
== linear
--
t§ = F.linear($T, W)
== where
--
t§ = torch.where($T > $F, $T, $T * 2)
== reduction
--
t§ = $T - $T.«sum|mean|amax»(«0|1|-1», keepdim=True)
== clamp
--
t§ = $T.clamp(«-1, 1|min=$F|max=2.0»)
== softmax
--
t§ = torch.softmax($T, -1)
== shapes there and back
--
t§ = $T.«t().contiguous().t()|reshape(-1).view_as($T)|unsqueeze(0).squeeze(0)|flip(0)|roll(1, 1)»
== in place
--
t§ = $T.clone()
t§.«add_(1)|mul_(2)|relu_()|zero_()|fill_($F)|sub_($F)»
== stacked
--
t§ = torch.«stack([$T, $T]).sum(0)|cat([$T, $T], 1)[:, :3]»
"""
