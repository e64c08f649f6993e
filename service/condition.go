package service

// Condition is one reason why a promotion or a verification run is refused. A
// refusal carries all of them in the Details["conditions"] of its error.
type Condition struct {
	// Code is API: stable, never renamed.
	Code string `json:"code" example:"copies_not_proven"`
	// Class is the class it is about, "" when it is about the whole request.
	Class string `json:"class,omitempty" example:"pos-sales"`
	// Message is one sentence for people that says what to do.
	Message string `json:"message"`
	// Numbers has what the message says for machines: numbers, names and times by name.
	Numbers map[string]any `json:"numbers,omitempty" swaggertype:"object"`
}
