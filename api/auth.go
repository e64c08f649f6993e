package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/lanegate/lanegate"
)

// Role is what a token may do. admin includes operate, which includes view and
// submit; a submit token posts jobs and sees its own; an agent token is for
// grants and attempts only; run is submit and agent in one, for lanegate run.
type Role string

// Roles of tokens and routes. RolePublic and RoleAttempt are for routes only: the
// latter takes the token of the attempt itself instead of a client's.
const (
	RolePublic  Role = "public"
	RoleAttempt Role = "attempt"
	RoleSubmit  Role = "submit"
	RoleView    Role = "view"
	RoleOperate Role = "operate"
	RoleAdmin   Role = "admin"
	RoleAgent   Role = "agent"
	RoleRun     Role = "run"
)

// Roles lists the roles a token can have.
var Roles = []Role{RoleSubmit, RoleView, RoleOperate, RoleAdmin, RoleAgent, RoleRun}

// Token is a bearer token as the configuration knows it: by its digest.
type Token struct {
	Name   string
	Role   Role
	SHA256 string // 64 hex digits of the token's SHA-256
	// Classes, when not empty, restricts the token to these job classes.
	Classes []string
}

// tokenPrefix makes a leaked token easy to find and to recognise.
const tokenPrefix = "lg_"

// NewToken makes a random token (256 bits) and returns it with the digest that
// goes into the configuration.
func NewToken() (token, sha256hex string) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process instead
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
	return token, HashToken(token)
}

// HashToken returns the 64 hex digits that the configuration names a token by.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// caller is who sent a request.
type caller struct {
	Name    string
	Role    Role
	Classes []string
}

// localCaller is everybody when no tokens are configured.
var localCaller = caller{Name: "local", Role: RoleAdmin}

// callerOf is who sent a request, of role public where nobody has to say.
func callerOf(ctx context.Context) caller { return callOf(ctx).caller }

// keyring finds callers by token.
type keyring struct {
	sums    [][sha256.Size]byte
	callers []caller
}

func newKeyring(tokens []Token) keyring {
	var k keyring
	for _, t := range tokens {
		var sum [sha256.Size]byte
		if n, err := hex.Decode(sum[:], []byte(t.SHA256)); err != nil || n != len(sum) {
			panic("api: token " + t.Name + ": sha256 is not 64 hex digits")
		}
		k.sums = append(k.sums, sum)
		k.callers = append(k.callers, caller{t.Name, t.Role, t.Classes})
	}
	return k
}

var (
	errNoToken = &lanegate.Error{
		Kind: lanegate.KindUnauthorized, Code: "token_required",
		Message: "send a token: Authorization: Bearer <token>.",
	}
	errBadToken = &lanegate.Error{
		Kind: lanegate.KindUnauthorized, Code: "token_unknown",
		Message: "this token is not known here; lanegate token new makes one, its sha256 goes under tokens in the config file.",
	}
	errForbidden = &lanegate.Error{Kind: lanegate.KindForbidden, Code: "role_insufficient"}
)

// find looks at every token whatever it finds, so that time tells nothing.
func (k keyring) find(r *http.Request) (caller, error) {
	if len(k.sums) == 0 {
		return localCaller, nil
	}
	token, ok := bearer(r)
	if !ok {
		return caller{}, errNoToken
	}
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range k.sums {
		if subtle.ConstantTimeCompare(k.sums[i][:], sum[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return caller{}, errBadToken
	}
	return k.callers[found], nil
}

// bearer is the token in the Authorization header; false when there is none.
func bearer(r *http.Request) (token string, ok bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

// includes says whether a token of role r may use a route that needs need.
func (r Role) includes(need Role) bool {
	switch need {
	case RolePublic:
		return true
	case RoleSubmit: // reading jobs is open to view as well; see mayPost
		return r == RoleSubmit || r == RoleRun || r == RoleView || r == RoleOperate || r == RoleAdmin
	case RoleView:
		return r == RoleView || r == RoleOperate || r == RoleAdmin
	case RoleOperate:
		return r == RoleOperate || r == RoleAdmin
	case RoleAdmin:
		return r == RoleAdmin
	case RoleAgent:
		return r == RoleAgent || r == RoleRun
	}
	return false
}

// authorize finds the caller of a request, or says why it may not go on.
func (a *API) authorize(r *http.Request, rt route) error {
	need := rt.role
	if need == RolePublic || need == RoleAttempt {
		return nil
	}
	c, err := a.keys.find(r)
	if err != nil {
		return err
	}
	if len(a.keys.sums) > 0 { // without tokens everybody may do everything
		posts := r.Method == http.MethodPost && need == RoleSubmit
		if !c.Role.includes(need) || (posts && c.Role == RoleView) {
			return errForbidden.With("token %q has role %s; this call needs %s.", c.Name, c.Role, need)
		}
		if err := c.mayCall(rt, r); err != nil {
			return err
		}
	}
	callOf(r.Context()).caller = c
	return nil
}

// mayCall keeps tokens that are restricted to some classes away from the others,
// and from calls that are about the whole gateway. What a submission or a new
// class names is judged when its body was read, jobs by maySee.
func (c caller) mayCall(rt route, r *http.Request) error {
	if len(c.Classes) == 0 {
		return nil
	}
	if strings.HasPrefix(rt.pattern, "/job-classes/{id}") {
		return c.mayUse(chi.URLParam(r, "id"))
	}
	shared := strings.HasPrefix(rt.pattern, "/lanes") || strings.HasPrefix(rt.pattern, "/resources")
	whole := strings.HasPrefix(rt.pattern, "/jobs/hand-over") || rt.pattern == "/metrics" || rt.pattern == "/advice" || rt.pattern == "/run-log" || rt.pattern == "/freshness"
	if whole || (shared && rt.method != http.MethodGet) {
		return errForbidden.With("token %q is restricted to some job classes; this call is about the whole gateway.", c.Name)
	}
	return nil
}

// others protects a gateway without tokens from pages of other origins that are
// open in a browser beside it. Clients that are no browsers pass.
var others = http.NewCrossOriginProtection()

func sameOrigin(r *http.Request) error {
	if others.Check(r) != nil {
		return errForbidden.With("this request comes from a web page of another origin, which may not change anything here.")
	}
	return nil
}

// mayUse says whether the caller's token is good for a class.
func (c caller) mayUse(class string) error {
	if len(c.Classes) == 0 || slices.Contains(c.Classes, class) {
		return nil
	}
	return errForbidden.With("token %q is restricted to the classes %s.", c.Name, strings.Join(c.Classes, ", "))
}

// maySee hides other clients' jobs from submit tokens, and other classes' from
// restricted ones, as if they did not exist.
func (c caller) maySee(j lanegate.Job) error {
	if ((c.Role == RoleSubmit || c.Role == RoleRun) && j.Client != c.Name) || c.mayUse(j.Class) != nil {
		return lanegate.ErrJobNotFound
	}
	return nil
}
